"""``ninfer run``: one answer on the terminal, without a server.

The answer goes to stdout as it comes; reasoning, progress and figures go to stderr, so that a pipe
receives the answer alone.  The one thing a reader would get wrong: this is the server's own path
(chat request, template, engine, output room) minus HTTP, so what works here works there.
"""

from __future__ import annotations

import argparse

from ninfer.commands.serve import add_backend, number

HELP = "Answer one prompt or conversation on the terminal."


def configure(parser: argparse.ArgumentParser) -> None:
    """Describe the options."""
    add = parser.add_argument
    add("artifact", help="the .ninfer file to load")
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--prompt", metavar="TEXT", help="one user message")
    what.add_argument("--messages", metavar="FILE", help="JSON: an array of messages, or {messages, tools}")
    add("--system", metavar="TEXT", help="a system message before --prompt")
    add("--max-context", metavar="N", type=number(1), default=2048, help="tokens in all (default 2048)")
    add(
        "--max-new",
        metavar="N",
        type=number(0),
        default=128,
        help="most tokens of the answer (default 128)",
    )
    add("--prefill-chunk", metavar="N", type=number(1), default=1024, help="tokens of one prefill unit")
    add_backend(parser)
    add("--vision", action="store_true", help="take images and video, also as paths in the --messages file")
    add("--chat-template", metavar="FILE", help="Jinja template to use instead of the artifact's")
    add("--no-thinking", action="store_true", help="answer without reasoning first")
    add("--thinking-budget", metavar="N", type=number(1), help="cap on reasoning tokens")
    add("--stop", metavar="TEXT", action="append", default=[], help="stop at this text; up to four times")
    add("--temperature", metavar="F", type=number(0, 2, kind=float), help="0 is greedy")
    add("--top-p", metavar="F", type=number(0, 1, kind=float), help="nucleus")
    add("--top-k", metavar="N", type=number(0, 20), help="candidates; 0 means 20")
    add("--seed", metavar="N", type=int, default=0, help="default 0")
    add("--greedy", action="store_true", help="exact argmax")
    add("--raw-output", action="store_true", help="print tool-call markup instead of parsed calls")
    add("--print-token-ids", action="store_true", help="print the ids of the answer to stderr")


def run(args: argparse.Namespace) -> int:
    """Answer; see ``ninfer/oneshot.py``."""
    from ninfer.runtime.threads import settle_blas_threads

    settle_blas_threads()  # before NumPy is loaded
    from ninfer.oneshot import answer

    return answer(args)
