# ruff: noqa: E501  (tables are read across)
"""Material for long documents: a family is a list of entries, each entry a subject with facts, told in several ways.

``facts``: attribute -> (question about {s}, sentences with {s} and {v}, values). A value occurs once in a document, so that a
question has one answer. ``asides`` carry no answer. ``notices`` are facts about the whole: (question, sentence with {v}, values).
"""

from typing import NamedTuple


class Family(NamedTuple):
    title: str
    opening: str
    subjects: list[str]
    facts: dict[str, tuple[str, list[str], list[str]]]
    asides: list[str]
    notices: list[tuple[str, str, list[str]]]


YEARS = [str(y) for y in range(1788, 1989, 7)]
FAMILIES: dict[str, Family] = {
    "museums": Family(
        "Small museums of the coast",
        "This guide lists collections that are run by a handful of people each. Opening hours change with the season, so ring "
        "before you travel. The order follows the coast road from north to south.",
        [f"the {x} Museum" for x in ["Button", "Clock", "Rope", "Kite", "Salt", "Bottle", "Lantern", "Spoon", "Whistle", "Umbrella", "Postcard", "Key", "Glove", "Compass", "Basket", "Thimble", "Accordion", "Ladder", "Marble", "Barrel"]],
        {
            "founded": ("In which year was {s} founded?",
                        ["{s} was founded in {v}.", "The doors of {s} first opened in {v}.", "It was in {v} that {s} came into being."],
                        YEARS),
            "keeper": ("Who looks after {s}?",
                       ["{v} looks after the collection of {s}.", "Visitors of {s} are usually shown round by {v}.",
                        "The person to ask for at {s} is {v}."],
                       ["Agnes Toll", "Bruno Feld", "Celia Marsh", "Dario Venn", "Edda Holm", "Fergus Lane", "Gudrun Ek", "Hamid Noor",
                        "Iris Quill", "Jakob Thorn", "Kaia Strand", "Leopold Ash", "Mirela Dane", "Nils Orchard", "Olive Stern", "Pavel Rook",
                        "Ruth Calder", "Stefan Loch"]),
            "building": ("In what kind of building is {s}?",
                         ["{s} fills an old {v}.", "You find {s} in what used to be a {v}.", "A former {v} houses {s}."],
                         ["bakery", "chapel", "customs house", "fire station", "school", "windmill", "boathouse", "railway station", "brewery",
                          "barn", "post office", "laundry", "cinema", "tannery", "courthouse", "granary"]),
        },
        ["The stairs are steep, and coats are left below.", "Children get a sheet with riddles at the door.",
         "A small stove heats the second room in winter.", "Photographs may be taken without a flash.",
         "There is a bench outside with a view of the water.", "Most labels are written by hand.",
         "The guest book is worth a look in itself.", "Tea is sold on summer afternoons.",
         "On stormy days the shutters stay closed.", "The last room smells of tar and oranges.",
         "Groups should write a week ahead.", "The roof was mended with the help of the neighbours."],
        [("What is the password for the online tickets?", "The password for the online tickets is {v}.",
          ["seagull", "rowboat", "driftwood", "lantern"]),
         ("On which day are all the museums closed?", "All the museums are closed on {v}.", ["Monday", "Tuesday", "Wednesday", "Thursday"]),
         ("How much does the pass for all museums cost?", "The pass for all museums costs {v}.",
          ["11 euros", "14 euros", "23 euros", "32 euros"])],
    ),
    "nursery": Family(
        "Catalogue of the hillside nursery",
        "All plants are grown without heat and sent in the first week of March. Please order early; some kinds are few. The "
        "descriptions come from our own beds and not from books.",
        [f"the rose called {x}" for x in ["Aurora", "Bellweather", "Cassia", "Dunmore", "Evenfall", "Florine", "Grisette", "Hartley", "Isolde", "Jessamy", "Kestrel", "Lorimer", "Mirabel", "Nocturne", "Ottoline", "Peregrine", "Quillon", "Rosamund", "Saffron", "Tamsin"]],
        {
            "colour": ("What colour are the flowers of {s}?",
                       ["The flowers of {s} are {v}.", "{s} opens {v} and keeps that colour.", "In our beds {s} flowers {v}."],
                       ["apricot", "crimson", "ivory", "lilac", "lemon yellow", "salmon pink", "copper", "pure white", "violet", "scarlet",
                        "cream", "magenta", "pale green", "deep purple", "coral", "amber"]),
            "height": ("How tall does {s} grow?",
                       ["{s} reaches {v}.", "Allow room: {s} grows to {v}.", "After three years {s} stands {v} high."],
                       [f"{n} centimetres" for n in range(45, 250, 11)]),
            "place": ("Where does {s} grow best?",
                      ["{s} does best {v}.", "Plant {s} {v}.", "The right place for {s} is {v}."],
                      ["against a south wall", "beside water", "in half shade", "on a sandy slope", "in a deep pot", "under old trees",
                       "along a fence", "in heavy clay", "on a windy terrace", "near a chimney", "at the edge of a wood", "in a cold yard",
                       "between herbs", "on a gravel bank", "at the foot of a pear tree"]),
        },
        ["Cut back by a third after flowering.", "Bees visit it from morning to dusk.", "It was slow to settle in the first year.",
         "The leaves turn well in autumn.", "We have never had to spray it.", "A frost in May does it no harm.",
         "The scent is strongest after rain.", "It makes a fine cut flower.", "Deer leave it alone, hares do not.",
         "Give it a spade of compost in spring.", "Ours came from a churchyard as a cutting.", "Do not let it dry out in June."],
        [("Who waters the nursery on Sundays?", "{v} waters the nursery on Sundays.",
          ["Mrs Hale", "Mr Osei", "Mrs Lund", "Mr Pratt"]),
         ("How much does the wooden crate cost?", "The wooden crate costs {v}.", ["7 euros", "9 euros", "12 euros", "16 euros"]),
         ("In which month is the nursery closed?", "The nursery is closed in {v}.", ["January", "August", "November", "December"])],
    ),
    "harbour": Family(
        "Register of the fishing harbour",
        "The register is kept by the harbour office and read out on request. It names every boat that has a berth of its own. "
        "Guests are entered in another book and are not part of this list.",
        [f"the {x}" for x in ["Arabella", "Boreas", "Clementine", "Dauntless", "Esperanza", "Fulmar", "Gannet", "Halcyon", "Icarus", "Juniper", "Kittiwake", "Lodestar", "Marigold", "Nimrod", "Osprey", "Pandora", "Rowena", "Sandpiper", "Tempest", "Vesper"]],
        {
            "skipper": ("Who is the skipper of {s}?",
                        ["The skipper of {s} is {v}.", "{s} sails under her skipper {v}.", "{v} has been skipper of {s} for years."],
                        ["Aled Penn", "Britta Sund", "Conor Reef", "Dagmar Voss", "Eino Kallas", "Flora Mead", "Gideon Tarr", "Halla Bru",
                         "Ivo Marek", "Jorun Vik", "Kester Pike", "Lowri Dean", "Morten Gade", "Nuala Finn", "Osric Shaw", "Pia Lofgren"]),
            "hull": ("What colour is the hull of {s}?",
                     ["The hull of {s} is {v}.", "{s} has a hull painted {v}.", "You know {s} by her hull, which is {v}."],
                     ["black", "dark red", "sea green", "white", "pale blue", "orange", "grey", "yellow", "brown", "turquoise", "pink", "silver",
                      "navy blue", "olive", "cream"]),
            "catch": ("What does {s} catch?",
                      ["{s} goes out to catch {v}.", "The usual catch of {s} is {v}.", "{s} lands {v} and little else."],
                      ["mackerel", "lobster", "herring", "cod", "shrimp", "eel", "squid", "crab", "haddock", "sprat", "plaice", "mussels", "tuna",
                       "sole", "whiting"]),
        },
        ["The engine was replaced two winters ago.", "She leaves before dawn and is back by noon.", "The nets are mended on the quay.",
         "A dog usually sleeps on the deck.", "The rent has been paid until the summer.", "Her papers are in order.",
         "The mast was struck by lightning once.", "The crew is never more than four.", "She took part in the rescue last March.",
         "The name was repainted in spring.", "Her bell comes from an older ship.", "She lies quiet even in a southerly gale."],
        [("What is the wi-fi code of the harbour office?", "The wi-fi code of the harbour office is {v}.",
          ["anchor77", "netloft5", "bluefin3", "quayside9"]),
         ("On which day is the ice machine cleaned?", "The ice machine is cleaned on {v}.", ["Monday", "Thursday", "Friday", "Sunday"]),
         ("What is the spare key kept in?", "The spare key is kept in {v}.", ["a red tin", "a boot", "a tea pot", "a drawer"])],
    ),
    "staff": Family(
        "Who is who at the Brightwater works",
        "This list is for new colleagues. It says who does what, where to find them and when they joined. Ask at the gate if a "
        "door is locked.",
        ["Adisa", "Birgit", "Cosmin", "Delphine", "Emeka", "Freya", "Gaspard", "Hedda", "Ibrahim", "Jolanta", "Kasper", "Liora", "Magnus",
         "Noemi", "Orhan", "Petra", "Rasmus", "Sunniva", "Tiago", "Ulrike"],
        {
            "task": ("What does {s} do?",
                     ["{s} is in charge of {v}.", "If it has to do with {v}, turn to {s}.", "The job of {s} is {v}."],
                     ["the night shift", "payroll", "the canteen", "spare parts", "safety training", "the archive", "water quality", "the forklifts",
                      "visitor tours", "purchasing", "the boiler", "customs papers", "the first-aid room", "test reports", "the switchboard"]),
            "room": ("In which room does {s} work?",
                     ["You find {s} in room {v}.", "{s} sits in room {v}.", "Room {v} is where {s} works."],
                     [str(n) for n in range(103, 420, 17)]),
            "hobby": ("What does {s} do after work?",
                      ["After work {s} goes in for {v}.", "{s} spends the evenings with {v}.", "Outside the works {s} is known for {v}."],
                      ["fencing", "beekeeping", "tango", "model ships", "choir singing", "rock climbing", "pottery", "stargazing", "juggling",
                       "archery", "baking", "origami", "rowing", "calligraphy", "badminton"]),
        },
        ["Knock before you enter.", "Mails are answered before noon.", "There is always a bowl of nuts on the desk.",
         "The two neighbours share a printer.", "Holidays are entered on the wall chart.", "The door opens to the inner yard.",
         "Questions are welcome, even simple ones.", "The phone is often busy in the first week of a month.",
         "A bicycle hangs on the wall behind.", "The plants there are watered by everybody.", "It gets warm in summer.",
         "Old drawings are kept in the cupboard."],
        [("What is the code of the main gate?", "The code of the main gate is {v}.", ["4471", "9038", "2265", "7716"]),
         ("Where is the fire alarm tested?", "The fire alarm is tested in {v}.", ["the yard", "the cellar", "the lobby", "the garage"]),
         ("Which meal is free on Fridays?", "On Fridays the meal that is free is {v}.", ["soup", "pancakes", "curry", "salad"])],
    ),
    "villages": Family(
        "Walking from village to village",
        "The walk takes two weeks and needs no guide. Water can be had everywhere, food is another matter. Distances are measured "
        "along the paths and not along the road.",
        ["Ardlow", "Bramley", "Corvedale", "Dunnock", "Elmstow", "Farley", "Greywell", "Hexton", "Ivelet", "Jedworth", "Kilnsey", "Larkhill", "Mosswater", "Nettleby", "Oxenhope", "Penrow", "Quarley", "Rushden", "Sallow", "Thornby"],
        {
            "inn": ("What is the inn at {s} called?",
                    ["The inn at {s} is called the {v}.", "In {s} you can sleep at the {v}.", "Rooms in {s} are let at the {v}."],
                    ["Blue Boar", "Three Owls", "Silent Woman", "Copper Kettle", "White Hart", "Drowned Rat", "Golden Fleece", "Old Oak",
                     "Running Horse", "Seven Stars", "Black Swan", "Merry Miller", "Red Lion", "Green Man", "Lost Shepherd"]),
            "distance": ("How far is it from {s} to the next village?",
                         ["From {s} it is {v} to the next village.", "The stage that starts in {s} is {v} long.", "Leaving {s}, you have {v} ahead of you."],
                         [f"{n} kilometres" for n in range(6, 26)]),
            "craft": ("What is {s} known for?",
                      ["{s} is known for its {v}.", "People come to {s} for its {v}.", "The pride of {s} is its {v}."],
                      ["goat cheese", "baskets", "bell foundry", "carved doors", "smoked trout", "blue pottery", "cider", "lace", "knives",
                       "honey", "straw hats", "violins", "quince jelly", "wool market", "stone walls"]),
        },
        ["The path is muddy after rain.", "A bus runs on market days.", "The last house has a well in the yard.",
         "Mind the geese behind the church.", "The view opens after the second stile.", "There is shade in the afternoon.",
         "The shop closes for lunch.", "Dogs must be kept on a lead among the sheep.", "Old boundary stones mark the way.",
         "The bridge is narrow but sound.", "In May the banks are full of primroses.", "The footbridge was washed away once."],
        [("Which number do you call in an emergency on the path?", "In an emergency on the path, call {v}.",
          ["4120", "5508", "6934", "8271"]),
         ("Who sells the walking map?", "The walking map is sold by {v}.", ["the baker", "the postman", "the blacksmith", "the teacher"]),
         ("What colour are the signs of the walk?", "The signs of the walk are {v}.", ["yellow", "red", "blue", "white"])],
    ),
}  # fmt: skip
