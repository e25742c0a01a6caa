"""For each public instruction: its arguments, answers that obey it, and answers that do not."""

from __future__ import annotations

from typing import Any

CASES: dict[str, tuple[dict[str, Any], list[str], list[str]]] = {
    "keywords:existence": ({"keywords": ["tide", "Moon"]}, ["The moon and the TIDES."], ["The moon."]),
    "keywords:frequency": (
        {"keyword": "sea", "frequency": 2, "relation": "at least"}, ["Sea, sea and land"], ["sea", "see"],
    ),
    "keywords:forbidden_words": ({"forbidden_words": ["rock"]}, ["a rocket"], ["Rock on", "a rock."]),
    "keywords:letter_frequency": (
        {"letter": "q", "let_frequency": 2, "let_relation": "less than"}, ["Quite", "none"], ["Q and q"],
    ),
    "length_constraints:number_sentences": (
        {"num_sentences": 3, "relation": "less than"}, ["One. Two!", "It is 3.5 m"], ["One. Two. Three."],
    ),
    "length_constraints:number_paragraphs": (
        {"num_paragraphs": 2}, ["a\n***\nb", "a *** b"], ["a", "a *** b *** c", "a *** *** b"],
    ),
    "length_constraints:number_words": ({"num_words": 3, "relation": "at least"}, ["a b c", "a-b c"], ["a b"]),
    "length_constraints:nth_paragraph_first_word": (
        {"num_paragraphs": 2, "nth_paragraph": 2, "first_word": "weekend"},
        ["Hi.\n\nWeekend, at last.", 'x\n\n\n\n"Weekend" y'], ["Hi.\n\nweekends", "weekend\n\nx", "weekend"],
    ),
    "detectable_content:number_placeholders": ({"num_placeholders": 2}, ["[name] at [place]"], ["[name]", "none"]),
    "detectable_content:postscript": ({"postscript_marker": "P.P.S"}, ["x\nP.P.S: y", "p. p. s y"], ["x\nP.S. y"]),
    "detectable_format:number_bullet_lists": (
        {"num_bullets": 2}, ["* a\n- b", "x\n  * a\n  * b"], ["* a", "* a\n* b\n* c", "**a**\n* b"],
    ),
    "detectable_format:constrained_response": (
        {}, ["My answer is no.", "Well: My answer is maybe."], ["no", "My answer"],
    ),
    "detectable_format:number_highlighted_sections": (
        {"num_highlights": 2}, ["*a* and *b*", "**a** and **b**"], ["*a*", "* * and *a*"],
    ),
    "detectable_format:multiple_sections": (
        {"section_spliter": "SECTION", "num_sections": 2},
        ["SECTION 1\na\nSECTION 2\nb"], ["SECTION 1\na", "Section 1 2"],
    ),
    "detectable_format:json_format": ({}, ['{"a": 1}', '```json\n[1]\n```'], ["{a: 1}", "Here: {}"]),
    "detectable_format:title": ({}, ["<<A tale>>\nx"], ["<A tale>", "<< >>", "A\n<<b\nc>>"]),
    "combination:two_responses": ({}, ["a******b", "******a******b******"], ["a", "a******a", "a******b******c"]),
    "combination:repeat_prompt": ({"prompt_to_repeat": "Write it."}, ["write it. Done"], ["Done. Write it."]),
    "startend:end_checker": ({"end_phrase": "Any more?"}, ["x. any more?", '"x. Any more?"'], ["Any more? x"]),
    "startend:quotation": ({}, ['"all"'], ['"open', '"', "all"]),
    "change_case:capital_word_frequency": (
        {"capital_frequency": 2, "capital_relation": "at least"}, ["NO WAY out"], ["NO way", "No Way"],
    ),
    "change_case:english_capital": ({}, ["ALL OF 1."], ["All", "1."]),
    "change_case:english_lowercase": ({}, ["all of 1."], ["All", "1."]),
    "punctuation:no_comma": ({}, ["a; b"], ["a, b"]),
}  # fmt: skip
