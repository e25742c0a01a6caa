"""Prints what the gate's statistics cover, spend and detect, as Markdown: python -m tests.pipeline.gate.coverage"""

from __future__ import annotations

from tests.pipeline.gate.coverage import intervals, rates, spending


def main() -> None:
    print(f"## Coverage, {intervals.DRAWS} draws each\n")
    print(intervals.table([case.row() for case in intervals.cases()]))
    print(f"\n## Alpha spending, {spending.DRAWS} comparisons each, up to {spending.MOST_PAIRS} pairs of rounds\n")
    print(spending.table(spending.all_spent()))
    print(f"\n## Rules, {rates.DRAWS} runs each\n")
    print(rates.table([rates.rates(rule) for rule in rates.rules()]))


if __name__ == "__main__":
    main()
