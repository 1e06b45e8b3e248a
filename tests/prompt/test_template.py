from __future__ import annotations

import datetime
import itertools
import json
from collections.abc import Mapping

import pytest

from ninfer.faults import Refused, StartupError
from ninfer.prompt.sandbox import Meter, Overrun
from ninfer.prompt.seals import Seals
from ninfer.prompt.template import ChatTemplate
from tests.prompt.resources import PLAIN, SPECIAL

SEALS = Seals(SPECIAL + PLAIN)
NOON = datetime.datetime(2026, 8, 9, 12, 0)


def meter(size: int = 100_000) -> Meter:
    """A clock that passes one millisecond whenever it is read, and ten seconds to spend."""
    ticks = itertools.count()
    return Meter(lambda: next(ticks) / 1000, 10.0, size)


def sealed(source: str, variables: Mapping[str, object] | None = None, size: int = 100_000) -> str:
    return ChatTemplate(source, SEALS, lambda: NOON).render(variables or {}, meter(size))


def rendered(source: str, **variables: object) -> str:
    return SEALS.unseal(sealed(source, variables))


# What is written and what is looked for


@pytest.mark.parametrize(
    "source",
    [
        "<think>",
        "{{ '<think>' }}",
        "{% set x = '<think>' %}{{ x }}",
        "{{ '<think>' ~ '' }}",
        "{{ '' + '<think>' }}",
        "{{ '<think>%s' % '' }}",
        "{{ '<think>{}'.format('') }}",
        "{{ ['<think>', ''] | join }}",
        "{{ ''.join(['<think>']) }}",
        "{{ none | default('<think>', true) }}",
        "{{ 'x' | replace('x', '<think>') }}",
        "{{ 'x'.replace('x', '<think>') }}",
        "{{ '<think>' if true else '' }}",
        "{% macro m(t) %}{{ t }}{% endmacro %}{{ m('<think>') }}",
        "{% macro m(t='<think>') %}{{ t }}{% endmacro %}{{ m() }}",
        "{% set ns = namespace(t='<think>') %}{{ ns.t }}",
        "{% for t in ['<think>'] %}{{ t }}{% endfor %}",
        "{{ {'a': '<think>'}.a }}",
    ],
)
def test_a_control_token_that_the_template_writes_is_sealed(source: str) -> None:
    assert sealed(source) == SEALS.of("<think>")


@pytest.mark.parametrize(
    ("source", "result"),
    [
        ("{{ '</think>' in text }}", "True"),
        ("{{ text.split('</think>')[0] }}", "<think>a"),
        ("{{ text.split('</think>')[0].split('<think>')[-1] }}", "a"),
        ("{{ text.partition('</think>')[2] }}", "b"),
        ("{{ text.startswith('<think>') }}", "True"),
        ("{{ text.find('</think>') }}", "8"),
        ("{{ text.count('<think>') }}", "1"),
        ("{{ text.replace('<think>', '') }}", "a</think>b"),
        ("{{ text | replace('<think>', '') }}", "a</think>b"),
        ("{{ text.removeprefix('<think>') }}", "a</think>b"),
        ("{{ text == '<think>a</think>b' }}", "True"),
        ("{{ text is eq('<think>a</think>b') }}", "True"),
        ("{{ shapes['<think>'] }}", "1"),
        ("{{ shapes.get('<think>') }}", "1"),
        ("{% if text.endswith('b') and '<think>' in text %}yes{% endif %}", "yes"),
    ],
)
def test_a_control_token_that_the_template_looks_for_is_found_in_content(source: str, result: str) -> None:
    assert sealed(source, {"text": "<think>a</think>b", "shapes": {"<think>": 1}}) == result


# What templates of the family expect


def test_json_is_written_in_the_clients_order_and_unescaped() -> None:
    body = {"z": [1, 2.5, None, True], "a": "<b> & 'é' 猫 \"q\"", "n": {"y": {}, "x": []}}
    text = rendered("{{ body | tojson }}", body=body)
    assert text == json.dumps(body, ensure_ascii=False)
    assert text.startswith('{"z": [1, 2.5, null, true], "a": "<b> & \'é\' 猫')


def test_json_can_be_indented_and_escaped_on_request() -> None:
    assert rendered("{{ {'b': 'é', 'a': 1} | tojson(indent=1) }}") == '{\n "b": "é",\n "a": 1\n}'
    assert rendered("{{ 'é' | tojson(ensure_ascii=true) }}") == '"\\u00e9"'
    assert rendered("{{ {'b': 1, 'a': 2} | tojson(sort_keys=true) }}") == '{"a": 2, "b": 1}'


def test_the_date_is_the_servers_own() -> None:
    assert rendered("{{ strftime_now('%d %B %Y') }}") == "09 August 2026"


def test_blocks_are_trimmed_as_the_convention_wants() -> None:
    assert rendered("{% if true %}\n  {% set x = 1 %}\na\n{% endif %}\nb") == "a\nb"


def test_loops_keep_their_helpers() -> None:
    source = (
        "{% for x in items %}{{ loop.index0 }}{{ loop.length }}{{ loop.first }}{{ loop.last }}"
        "{{ loop.previtem }}{{ loop.nextitem }};{% endfor %}"
        "{% for x in none_such %}{% else %}empty{% endfor %}"
    )
    assert rendered(source, items=["a", "b"]) == "02TrueFalseb;12FalseTruea;empty"


def test_loops_can_be_left_filtered_and_unpacked() -> None:
    assert (
        rendered("{% for x in range(9) %}{% if x == 2 %}{% break %}{% endif %}{{ x }}{% endfor %}") == "01"
    )
    assert rendered("{% for x in range(6) if x is odd %}{{ x }}{% endfor %}") == "135"
    assert rendered("{% for k, v in {'a': 1}.items() %}{{ k }}{{ v }}{% endfor %}") == "a1"
    source = "{% for x in [1, [2, [3]]] recursive %}{{ loop(x) if x is iterable else x }}{% endfor %}"
    assert rendered(source) == "123"


@pytest.mark.parametrize(
    ("source", "result"),
    [
        ("{{ ' a ' | trim }}|{{ 'a,b'.split(',') | length }}", "a|2"),
        ("{{ [3, 1, 2] | sort | join('-') }}", "1-2-3"),
        ("{{ [{'n': 1}, {'n': 2}] | map(attribute='n') | list }}", "[1, 2]"),
        ("{{ [{'n': 1}, {'n': 2}] | join('+', attribute='n') }}", "1+2"),
        ("{{ [1, 2, 3] | select('odd') | join }}", "13"),
        ("{{ 'a\nb' | indent(2) }}", "a\n  b"),
        (
            "{{ 'x' * 3 }}{{ 3 * 'y' }}{{ [1] * 2 }}{{ [1] + [2] }}{{ 2 ** 10 }}{{ 7 % 4 }}",
            "xxxyyy[1, 1][1, 2]10243",
        ),
        ("{{ 'in 2026: %s' % 'x' }}{{ '%02d' % 7 }}{{ '{:>3}'.format('a') }}", "in 2026: x07  a"),
        ("{{ messages[::-1] | first }}{{ messages[-1:] | last }}", "bb"),
    ],
)
def test_ordinary_expressions_work(source: str, result: str) -> None:
    assert rendered(source, messages=["a", "b"]) == result


# Faults


def test_an_objection_of_the_template_is_told_to_the_client() -> None:
    with pytest.raises(Refused) as refusal:
        sealed("{{ raise_exception('No <think> and ' ~ 'é' ~ ' here.') }}")
    assert (refusal.value.fault.code, str(refusal.value)) == ("invalid_prompt", "No <think> and é here.")


@pytest.mark.parametrize(
    "source",
    [
        "{{ nothing.at.all }}",
        "{{ 1 / 0 }}",
        "{{ 'a' + 1 }}",
        "{{ [].missing() }}",
        "{{ {} | tojson(indent='x') }}",
        "{{ range(1, 2, 0) }}",
        "{{ range(10 ** 9) | list }}",
        "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
        "{% include 'other' %}",
        "{{ undefined_function() }}",
        "{{ body | tojson }}",
    ],
)
def test_a_template_that_stumbles_is_named_as_such(source: str) -> None:
    with pytest.raises(Refused) as refusal:
        sealed(source, {"body": object()})
    assert refusal.value.fault.code == "invalid_chat_template"


@pytest.mark.parametrize(
    "source",
    [
        "{{ ''.__class__.__mro__ }}",
        "{{ ''['__class__']['__mro__'] }}",
        "{{ (''|attr('__class__')).mro() }}",
        "{{ '{0.__class__.__mro__}'.format('') }}",
        "{{ '%s' | map('attr', '__class__') | list | first.x() }}",
        "{{ items.append(1) }}",
        "{{ items.clear() }}",
        "{{ shapes.update({}) }}",
        "{{ cycler.__init__.__globals__ }}",
        "{{ raise_exception.__globals__.x() }}",
        "{{ [''.format] | map('string') | list | first.x() }}",
    ],
)
def test_there_is_no_way_out_of_the_sandbox(source: str) -> None:
    items = [0]
    try:
        text = sealed(source, {"items": items, "shapes": {"a": 1}})
    except (Refused, StartupError):
        text = ""
    assert "class" not in text
    assert "os" not in text
    assert items == [0]


@pytest.mark.parametrize(
    "source", ["{% for %}", "{{ 'a' | nosuch }}", "{{ x is nosuch }}", "{{", "{% foo %}"]
)
def test_a_template_that_does_not_compile_is_an_operators_problem(source: str) -> None:
    with pytest.raises(StartupError, match="the chat template cannot be used"):
        ChatTemplate(source, SEALS)


# Budgets: each of these would run for hours or need gigabytes

SLOW = [
    "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
    "{% for a in range(99999) %}{% for b in range(99999) %}x{% endfor %}{% endfor %}",
    "{% macro m(n) %}{% if n %}{{ m(n - 1) }}{{ m(n - 1) }}{% endif %}{% endmacro %}{{ m(60) }}",
    "{% for a in range(99999) recursive %}{{ loop(range(99999)) if loop.depth < 9 }}{% endfor %}",
    "{% for a in range(99999) %}{% for b in range(99999) %}{{ 'x'.upper() }}{% endfor %}{% endfor %}",
]
ONCE = [
    "{{ 'a' * 200000000 }}",
    "{{ 200000000 * 'a' }}",
    "{{ [0] * 200000000 }}",
    "{{ 10 ** 10 ** 10 }}",
    "{% set s = 'a' * 9999 %}{{ s.replace('a', s) }}",
    "{% set s = 'a' * 9999 %}{{ s | replace('a', s) }}",
    "{% set s = 'a' * 9999 %}{{ s.join(s) }}",
    "{% set s = 'a' * 9999 %}{{ s | join(s) }}",
    "{% set s = 'a' * 9999 %}{% for i in range(999) %}{{ s }}{% endfor %}",
    "{% macro m() %}{% for i in range(999) %}{{ 'a' * 9999 }}{% endfor %}{% endmacro %}{{ m() | length }}",
    "{% set x %}{% for i in range(999) %}{{ 'a' * 9999 }}{% endfor %}{% endset %}{{ x | length }}",
    "{% filter length %}{% for i in range(999) %}{{ 'a' * 9999 }}{% endfor %}{% endfilter %}",
]
GROWING = [  # each makes ``s`` longer
    *(
        "s ~ s",
        "s + s",
        "'%s%s' % (s, s)",
        "'{0}{0}'.format(s)",
        "s * 2",
        "[s, s] | join",
        "''.join([s, s])",
    ),
    *("s.replace('a', 'aa')", "s | replace('a', 'aa')", "('\"' ~ s) | tojson", "s | list | string"),
    *("s | escape ~ '&'", "s | indent(8, true)", "[s] | string", "[s] | string | list"),
]
HOARDED = [  # each is a new thing of some ten thousand characters
    *("'a' * 9999", "s ~ i", "s + 'b'", "s[1:]", "s.upper()", "s | upper", "'%s!' % s", "s.split('b')"),
    *("[s] | string", "s | tojson", "s | list", "s.strip('b')"),
]


def grow(step: str) -> str:
    loop = "{% for i in range(9999) %}{% set s = ns.s %}{% set ns.s = STEP %}{% endfor %}"
    return "{% set ns = namespace(s='a') %}" + loop.replace("STEP", step)


def hoard(thing: str) -> str:
    loop = "{% for i in range(9999) %}{% set ns.all = (ns.all, THING) %}{% endfor %}"
    return "{% set s = 'a' * 9999 %}{% set ns = namespace(all=0) %}" + loop.replace("THING", thing)


def mutter(thing: str) -> str:
    loop = "{% set x %}{% for i in range(9999) %}{{ THING }}{% endfor %}{% endset %}"
    return "{% set s = 'a' * 9999 %}" + loop.replace("THING", thing)


NOT_OFFERED = [
    "{{ 'a'.ljust(200000000) }}",
    "{{ 'a'['rjust'](200000000) }}",
    "{{ ('a' | attr('zfill'))(200000000) }}",
    "{{ 'a'.center(200000000) }}",
    "{{ '\t'.expandtabs(200000000) }}",
    "{{ (1).to_bytes(200000000, 'big') }}",
    "{{ 'a'.translate({97: 'b'}) }}",
    "{{ '%200000000d' % 1 }}",
    "{{ '%*d' % (200000000, 1) }}",
    "{{ '%.200000000f' % 1 }}",
    "{{ '{:200000000}'.format(1) }}",
    "{{ '{:{}}'.format(1, 200000000) }}",
    "{{ '{:{w}}'.format_map({'w': 200000000}) }}",
    "{{ 'a' | indent(200000000) }}",
    "{{ 'a' | indent('b' * 1000) }}",
    "{{ [[1]] | tojson(indent=200000000) }}",
]


@pytest.mark.parametrize("source", SLOW)
def test_no_template_runs_past_its_time(source: str) -> None:
    with pytest.raises(Overrun, match="time"):
        sealed(source)


@pytest.mark.parametrize(
    "source", [*ONCE, *map(grow, GROWING), *map(hoard, HOARDED), *map(mutter, [*HOARDED, "[s]"])]
)
def test_no_template_makes_more_than_it_may(source: str) -> None:
    with pytest.raises(Overrun, match="size"):
        sealed(source)


@pytest.mark.parametrize("source", NOT_OFFERED)
def test_what_grows_by_a_number_is_not_offered(source: str) -> None:
    with pytest.raises(Refused) as refusal:
        sealed(source)
    assert refusal.value.fault.code == "invalid_chat_template"


@pytest.mark.parametrize(
    "name",
    ["batch", "center", "format", "lipsum", "pprint", "random", "slice", "urlize", "wordwrap", "xmlattr"],
)
def test_filters_without_a_use_here_are_not_offered(name: str) -> None:
    with pytest.raises(StartupError):
        ChatTemplate(f"{{{{ 'a' | {name} }}}}", SEALS)


def test_a_joining_of_what_is_just_small_enough_works() -> None:
    assert len(sealed("{{ 'a' * 1000 }}", size=1000)) == 1000
    with pytest.raises(Overrun):
        sealed("{{ 'a' * 1000 }}b", size=1000)
