# ruff: noqa: E501  (tables are read across)
"""Conversations with slots, and questions that only an earlier turn answers.

{family: (slots, turns, [(question, accepted answers)])}. Turns alternate: customer, assistant, customer, assistant. A slot is
(low, high, step), a list of words, or the name of a bank that ``fields`` fills (name, city, date, code).
"""

from typing import Any

_THINGS = ["lamp", "kettle", "clock", "jacket", "rucksack", "radio", "toaster", "mirror"]
_COLOURS = ["red", "green", "black", "white", "yellow", "grey"]
_DRINKS = ["coffee", "green tea", "apple juice", "cocoa", "lemonade"]
_DISHES = ["pancakes", "lentil soup", "fish pie", "rice salad", "mushroom pasta"]
_DAYS = ["Monday", "Tuesday", "Wednesday", "Thursday", "Friday"]

Dialogue = tuple[dict[str, Any], list[str], list[tuple[str, list[str]]]]

DIALOGUES: dict[str, Dialogue] = {
    "wrong_colour": (
        {"thing": _THINGS, "got": _COLOURS, "wanted": _COLOURS, "code": "code"},
        ["Hello, it is about order {code}. You have sent me a {got} {thing}.", "I am sorry. What did you order?",
         "I ordered a {wanted} one.", "Then we will send the right one today."],
        [("Which colour did I order?", ["{wanted}", "a {wanted} one", "a {wanted} {thing}"]),
         ("What is the number of my order?", ["{code}", "order {code}"]),
         ("In which colour did you send it to me?", ["{got}", "a {got} {thing}"])]),
    "table": (
        {"name": "name", "day": _DAYS, "n": (3, 9, 1), "h": (6, 9, 1)},
        ["A table for {n} on {day}, please.", "At what time?", "At {h} pm. My name is {name}.", "Thank you, the table is yours."],
        [("How many people is the table for?", ["{n}", "{n} people"]),
         ("On which day is the table booked?", ["{day}", "on {day}"]),
         ("At what time do I come?", ["{h} pm", "at {h} pm", "{h}"]),
         ("Under which name is it booked?", ["{name}"])]),
    "change_of_mind": (
        {"first": _DISHES, "second": _DISHES, "drink": _DRINKS},
        ["I would like the {first} and a {drink}.", "Certainly. Anything else?",
         "Wait, please make that {second} instead of {first}.", "No problem, I have changed it."],
        [("Which dish do I get now?", ["{second}", "the {second}"]),
         ("What do I get to drink?", ["{drink}", "a {drink}"])]),
    "luggage": (
        {"colour": _COLOURS, "city": "city", "street": ["Mill Lane", "Harbour Street", "Castle Road", "Linden Row"], "n": (2, 40, 1)},
        ["My {colour} suitcase did not arrive on the flight from {city}.", "Where may we bring it when we find it?",
         "To {n} {street}, please.", "We will call you as soon as we have it."],
        [("From which city was my flight?", ["{city}", "from {city}"]),
         ("What colour is my suitcase?", ["{colour}"]),
         ("In which street do I live?", ["{street}", "{n} {street}", "in {street}"])]),
    "course": (
        {"course": ["pottery", "Spanish", "first aid", "bookkeeping", "drawing"], "day": _DAYS, "fee": (40, 95, 5), "h": (5, 8, 1)},
        ["Is there still a place in the {course} course?", "Yes, it is on {day} at {h} pm and costs {fee} euros.",
         "Good. Please put me on the list.", "You are on the list."],
        [("How much does the course cost?", ["{fee} euros", "{fee}", "€{fee}"]),
         ("On which day is the course?", ["{day}", "on {day}", "{day}s", "on {day}s"]),
         ("Which course did I sign up for?", ["{course}", "the {course} course", "{course} course"])]),
    "pets": (
        {"pet": ["cat", "dog", "parrot", "rabbit", "hamster"], "pet_name": ["Biscuit", "Pepper", "Momo", "Tiger", "Olive"],
         "age": (2, 12, 1), "day": _DAYS},
        ["My {pet} does not eat any more.", "What is the animal called, and how old is it?",
         "It is called {pet_name} and is {age} years old.", "Please bring it to us on {day}."],
        [("What is my pet called?", ["{pet_name}"]),
         ("How old is my pet?", ["{age} years", "{age}", "{age} years old"]),
         ("On which day shall I come?", ["{day}", "on {day}"]),
         ("What kind of animal do I have?", ["{pet}", "a {pet}"])]),
    "repair": (
        {"thing": _THINGS, "fee": (12, 48, 1), "day": _DAYS, "code": "code"},
        ["Can you repair my {thing}?", "Yes, that costs {fee} euros. Your ticket is {code}.",
         "Fine. When will it be ready?", "On {day}, after lunch."],
        [("What is the number of my ticket?", ["{code}", "ticket {code}"]),
         ("When will it be ready?", ["{day}", "on {day}", "on {day}, after lunch", "{day}, after lunch"]),
         ("How much is the repair?", ["{fee} euros", "{fee}", "€{fee}"])]),
    "moved_date": (
        {"old": _DAYS, "new": _DAYS, "h": (8, 11, 1), "who": ["Dr Brandt", "Dr Osei", "Dr Lund", "Dr Marsh"]},
        ["I have an appointment with {who} on {old}.", "Yes, at {h} am.", "I cannot come then. Is {new} possible?",
         "Yes, {new} at the same time is free. I have moved it."],
        [("On which day is my appointment now?", ["{new}", "on {new}"]),
         ("Which doctor is my appointment with?", ["{who}", "with {who}"]),
         ("At what time is my appointment?", ["{h} am", "at {h} am", "{h}"])]),
    "neighbours": (
        {"one": ["plumber", "teacher", "baker", "nurse", "pilot"], "two": ["plumber", "teacher", "baker", "nurse", "pilot"],
         "name": "name", "city": "city"},
        ["My sister is a {one}, my brother is a {two}.", "And where do they live?",
         "Both live in {city}, with our uncle {name}.", "What a lovely family!"],
        [("What is the job of my brother?", ["{two}", "a {two}"]),
         ("What is the job of my sister?", ["{one}", "a {one}"]),
         ("In which city do they live?", ["{city}", "in {city}"]),
         ("What is the name of our uncle?", ["{name}"])]),
    "shopping": (
        {"a": (2, 9, 1), "b": (2, 9, 1), "fruit": ["apples", "pears", "lemons", "plums"], "other": ["eggs", "rolls", "onions", "candles"]},
        ["Please write a list: {a} {fruit} and {b} {other}.", "I have written it.",
         "And a bottle of milk.", "I have put the milk on the list."],
        [("How many {fruit} are on the list?", ["{a}", "{a} {fruit}"]),
         ("How many {other} are on the list?", ["{b}", "{b} {other}"]),
         ("What did I put on the list last?", ["milk", "a bottle of milk"])]),
    "hotel_room": (
        {"room": (104, 389, 1), "wifi": ["sunflower", "waterfall", "pinecone", "snowdrop"], "h": (7, 10, 1), "name": "name"},
        ["Good evening, I am {name}. I have booked a room.", "Welcome! You have room {room}. Breakfast is from {h} am.",
         "And the password of the wireless network?", "It is {wifi}. Sleep well!"],
        [("What is the password of the network?", ["{wifi}"]),
         ("What is the number of my room?", ["{room}", "room {room}"]),
         ("From what time is there breakfast?", ["{h} am", "from {h} am", "{h}"])]),
    "present": (
        {"who": ["mother", "brother", "aunt", "teacher", "neighbour"], "price": (15, 60, 5), "thing": _THINGS, "likes": ["gardening", "chess", "cooking", "sailing"]},
        ["I need a present for my {who}, for at most {price} euros.", "What does your {who} like?",
         "Mostly {likes}.", "Then take this book. It is better than the {thing}."],
        [("Who is the present for?", ["my {who}", "your {who}", "{who}"]),
         ("How much may the present cost?", ["{price} euros", "{price}", "at most {price} euros", "€{price}"]),
         ("What does that person like?", ["{likes}", "mostly {likes}"])]),
}  # fmt: skip
