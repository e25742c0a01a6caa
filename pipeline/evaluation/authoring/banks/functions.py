# ruff: noqa: E501  (tables are read across)
"""Small Python functions: name, arguments, what it does, asserts, a solution; by the author's rank of difficulty.

The solution is never shown to a model: it proves, in the tests, that the asserts can be passed.
"""

from typing import NamedTuple


class Function(NamedTuple):
    name: str
    args: str
    does: str
    example: str
    asserts: tuple[str, ...]
    solution: str


EASY = [
    Function("add_three", "a, b, c", "returns the sum of the three numbers", "add_three(1, 2, 3) == 6",
             ("add_three(4, 5, 6) == 15", "add_three(-1, 1, 0) == 0"), "return a + b + c"),
    Function("is_even", "n", "returns True if n is even and False if not", "is_even(4) is True",
             ("is_even(7) == False", "is_even(0) == True", "is_even(-2) == True"), "return n % 2 == 0"),
    Function("square", "n", "returns n multiplied by itself", "square(3) == 9", ("square(-4) == 16", "square(0) == 0"),
             "return n * n"),
    Function("biggest", "numbers", "returns the largest number of the list", "biggest([3, 9, 2]) == 9",
             ("biggest([-5, -2]) == -2", "biggest([7]) == 7"), "return max(numbers)"),
    Function("reverse_text", "text", "returns the text backwards", "reverse_text('abc') == 'cba'",
             ("reverse_text('') == ''", "reverse_text('level up') == 'pu level'"), "return text[::-1]"),
    Function("last_item", "items", "returns the last item of the list", "last_item([1, 2, 5]) == 5",
             ("last_item(['a']) == 'a'", "last_item([0, 0, -1]) == -1"), "return items[-1]"),
    Function("shout", "text", "returns the text in upper case", "shout('hi') == 'HI'",
             ("shout('Sea 9') == 'SEA 9'", "shout('') == ''"), "return text.upper()"),
    Function("area", "width, height", "returns the area of a rectangle", "area(2, 5) == 10",
             ("area(0, 7) == 0", "area(3, 3) == 9"), "return width * height"),
    Function("total", "numbers", "returns the sum of all numbers in the list", "total([1, 2, 3]) == 6",
             ("total([]) == 0", "total([-1, 5]) == 4"), "return sum(numbers)"),
    Function("greet", "name", "returns the word Hello, a space and the name", "greet('Ida') == 'Hello Ida'",
             ("greet('Tom') == 'Hello Tom'", "greet('Li Wu') == 'Hello Li Wu'"), "return 'Hello ' + name"),
    Function("smaller", "a, b", "returns the smaller of the two numbers", "smaller(3, 8) == 3",
             ("smaller(8, 3) == 3", "smaller(-1, 0) == -1", "smaller(2, 2) == 2"), "return min(a, b)"),
    Function("absolute", "n", "returns n without its sign", "absolute(-3) == 3", ("absolute(5) == 5", "absolute(0) == 0"),
             "return abs(n)"),
    Function("double_all", "numbers", "returns a list with every number doubled", "double_all([1, 4]) == [2, 8]",
             ("double_all([]) == []", "double_all([-3, 0]) == [-6, 0]"), "return [2 * x for x in numbers]"),
    Function("minutes_to_seconds", "minutes", "converts minutes to seconds", "minutes_to_seconds(2) == 120",
             ("minutes_to_seconds(0) == 0", "minutes_to_seconds(15) == 900"), "return 60 * minutes"),
]  # fmt: skip
MIDDLE = [
    Function("count_vowels", "text", "returns how many of its letters are one of a, e, i, o, u", "count_vowels('banana') == 3",
             ("count_vowels('sky') == 0", "count_vowels('aeiou') == 5"), "return sum(c in 'aeiou' for c in text)"),
    Function("factorial", "n", "returns the product of 1 to n; for 0 it is 1", "factorial(4) == 24",
             ("factorial(0) == 1", "factorial(6) == 720"), "p = 1\nfor i in range(2, n + 1):\n    p *= i\nreturn p"),
    Function("only_positive", "numbers", "returns the numbers above zero in the same order",
             "only_positive([3, -1, 2]) == [3, 2]", ("only_positive([0, -4]) == []", "only_positive([1]) == [1]"),
             "return [x for x in numbers if x > 0]"),
    Function("mean", "numbers", "returns the average of the list, or 0 if it is empty", "mean([2, 4]) == 3",
             ("mean([]) == 0", "mean([1, 2, 6]) == 3"), "return sum(numbers) / len(numbers) if numbers else 0"),
    Function("is_palindrome", "text", "returns True if the text reads the same backwards", "is_palindrome('noon') == True",
             ("is_palindrome('boat') == False", "is_palindrome('') == True", "is_palindrome('racecar') == True"),
             "return text == text[::-1]"),
    Function("join_words", "words", "joins the words with a hyphen", "join_words(['a', 'b']) == 'a-b'",
             ("join_words([]) == ''", "join_words(['sea', 'trial', 'day']) == 'sea-trial-day'"), "return '-'.join(words)"),
    Function("count_item", "items, wanted", "returns how often wanted occurs in the list", "count_item([1, 2, 1], 1) == 2",
             ("count_item([], 3) == 0", "count_item(['x', 'y'], 'y') == 1"), "return items.count(wanted)"),
    Function("without_duplicates", "items", "returns the items in order, each only once", "without_duplicates([1, 2, 1]) == [1, 2]",
             ("without_duplicates([]) == []", "without_duplicates([3, 3, 2, 3]) == [3, 2]"), "return list(dict.fromkeys(items))"),
    Function("first_letters", "words", "returns the first letters of the words as one text",
             "first_letters(['red', 'ant']) == 'ra'", ("first_letters([]) == ''", "first_letters(['x', 'yes']) == 'xy'"),
             "return ''.join(w[0] for w in words)"),
    Function("even_numbers", "limit", "returns all even numbers from 0 up to and including limit", "even_numbers(4) == [0, 2, 4]",
             ("even_numbers(1) == [0]", "even_numbers(7) == [0, 2, 4, 6]"), "return list(range(0, limit + 1, 2))"),
    Function("grade_of", "points", "returns 'pass' for 50 points or more and 'fail' for less", "grade_of(80) == 'pass'",
             ("grade_of(50) == 'pass'", "grade_of(49) == 'fail'"), "return 'pass' if points >= 50 else 'fail'"),
    Function("longest_word", "words", "returns the longest word; the first one if several are as long",
             "longest_word(['a', 'bcd', 'xy']) == 'bcd'", ("longest_word(['on', 'at']) == 'on'", "longest_word(['i']) == 'i'"),
             "return max(words, key=len)"),
    Function("celsius", "fahrenheit", "converts degrees: subtract 32, multiply by 5, divide by 9", "celsius(212) == 100",
             ("celsius(32) == 0", "celsius(-40) == -40"), "return (fahrenheit - 32) * 5 / 9"),
    Function("contains_digit", "text", "returns True if any character is a digit", "contains_digit('a1') == True",
             ("contains_digit('abc') == False", "contains_digit('') == False"), "return any(c.isdigit() for c in text)"),
]  # fmt: skip
HARD = [
    Function("is_prime", "n", "returns True if n is a prime number", "is_prime(7) == True",
             ("is_prime(1) == False", "is_prime(2) == True", "is_prime(9) == False", "is_prime(97) == True", "is_prime(0) == False"),
             "return n > 1 and all(n % i for i in range(2, int(n**0.5) + 1))"),
    Function("second_largest", "numbers", "returns the second largest different number, or None if there is none",
             "second_largest([4, 9, 7]) == 7", ("second_largest([9, 9, 1]) == 1", "second_largest([5, 5]) is None"),
             "u = sorted(set(numbers))\nreturn u[-2] if len(u) > 1 else None"),
    Function("word_counts", "text", "returns a dict from each word in lower case to how often it occurs",
             "word_counts('a b A') == {'a': 2, 'b': 1}", ("word_counts('') == {}", "word_counts('no no') == {'no': 2}"),
             "d = {}\nfor w in text.lower().split():\n    d[w] = d.get(w, 0) + 1\nreturn d"),
    Function("fibonacci", "n", "returns a list of the first n Fibonacci numbers, starting with 0 and 1",
             "fibonacci(5) == [0, 1, 1, 2, 3]", ("fibonacci(0) == []", "fibonacci(1) == [0]", "fibonacci(8)[-1] == 13"),
             "r = [0, 1]\nwhile len(r) < n:\n    r.append(r[-1] + r[-2])\nreturn r[:n]"),
    Function("digit_sum", "n", "returns the sum of the digits of n, ignoring its sign", "digit_sum(123) == 6",
             ("digit_sum(-45) == 9", "digit_sum(0) == 0"), "return sum(map(int, str(abs(n))))"),
    Function("flatten", "rows", "turns a list of lists into one list", "flatten([[1, 2], [3]]) == [1, 2, 3]",
             ("flatten([]) == []", "flatten([[], ['x']]) == ['x']"), "return [x for row in rows for x in row]"),
    Function("caesar", "text, shift", "moves each letter a-z on by shift, from z on to a; other characters stay",
             "caesar('abz', 1) == 'bca'", ("caesar('hi you', 2) == 'jk aqw'", "caesar('', 5) == ''"),
             "return ''.join(chr((ord(c) - 97 + shift) % 26 + 97) if 'a' <= c <= 'z' else c for c in text)"),
    Function("common", "a, b", "returns the sorted items that are in both lists, each once", "common([3, 1], [1, 3, 4]) == [1, 3]",
             ("common([2, 2], [2]) == [2]", "common([], [1]) == []"), "return sorted(set(a) & set(b))"),
    Function("running_total", "numbers", "returns the list of sums up to each position", "running_total([1, 2, 3]) == [1, 3, 6]",
             ("running_total([]) == []", "running_total([5, -5]) == [5, 0]"),
             "s, r = 0, []\nfor x in numbers:\n    s += x\n    r.append(s)\nreturn r"),
    Function("clock", "minutes", "turns minutes since midnight into a text like '07:05'", "clock(425) == '07:05'",
             ("clock(0) == '00:00'", "clock(1439) == '23:59'"), "return f'{minutes // 60:02d}:{minutes % 60:02d}'"),
    Function("chunks", "items, size", "splits the list into lists of the given size; the last may be shorter",
             "chunks([1, 2, 3], 2) == [[1, 2], [3]]", ("chunks([], 3) == []", "chunks([1, 2], 2) == [[1, 2]]"),
             "return [items[i:i + size] for i in range(0, len(items), size)]"),
    Function("title_case", "text", "makes the first letter of each word a capital and the rest small",
             "title_case('the OLD pier') == 'The Old Pier'", ("title_case('') == ''", "title_case('a b') == 'A B'"),
             "return ' '.join(w[:1].upper() + w[1:].lower() for w in text.split(' '))"),
]  # fmt: skip
LEVELS = [EASY, MIDDLE, HARD]
