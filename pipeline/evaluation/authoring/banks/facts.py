# ruff: noqa: E501  (tables are read across)
"""Short facts by family: (question with {x}, level 0 easy to 2 hard, {x: answer}). Other answers of a family distract."""

FAMILIES: dict[str, tuple[str, int, dict[str, str]]] = {
    "capital": ("What is the capital of {x}?", 0, {
        "Norway": "Oslo", "Portugal": "Lisbon", "Kenya": "Nairobi", "Peru": "Lima", "Poland": "Warsaw",
        "Egypt": "Cairo", "Greece": "Athens", "Cuba": "Havana", "Hungary": "Budapest", "Chile": "Santiago"}),
    "capital_rare": ("Which city is the capital of {x}?", 2, {
        "Mongolia": "Ulaanbaatar", "Uruguay": "Montevideo", "Estonia": "Tallinn", "Laos": "Vientiane",
        "Zambia": "Lusaka", "Oman": "Muscat", "Slovenia": "Ljubljana", "Senegal": "Dakar", "Fiji": "Suva"}),
    "opposite": ("What is the opposite of the word \"{x}\"?", 0, {
        "hot": "cold", "early": "late", "cheap": "expensive", "empty": "full", "ancient": "modern",
        "brave": "cowardly", "rough": "smooth", "public": "private", "guilty": "innocent", "shallow": "deep"}),
    "young": ("What is a young {x} called?", 1, {
        "cat": "a kitten", "sheep": "a lamb", "horse": "a foal", "goat": "a kid", "deer": "a fawn",
        "swan": "a cygnet", "goose": "a gosling", "frog": "a tadpole", "kangaroo": "a joey", "owl": "an owlet"}),
    "symbol": ("Which element has the chemical symbol {x}?", 1, {
        "Fe": "iron", "Au": "gold", "Na": "sodium", "K": "potassium", "Pb": "lead", "Ag": "silver",
        "Sn": "tin", "Hg": "mercury", "Cu": "copper", "W": "tungsten"}),
    "continent": ("On which continent does {x} lie?", 1, {
        "Bolivia": "South America", "Vietnam": "Asia", "Ghana": "Africa", "Austria": "Europe",
        "Paraguay": "South America", "Nepal": "Asia", "Mali": "Africa", "Latvia": "Europe", "Canada": "North America",
        "Panama": "North America"}),
    "made_from": ("What is {x} made from?", 0, {
        "cheese": "milk", "wine": "grapes", "paper": "wood", "flour": "grain", "glass": "sand",
        "chocolate": "cocoa beans", "leather": "animal hide", "tofu": "soya beans", "cider": "apples", "olive oil": "olives"}),
    "job": ("Who {x}?", 0, {
        "repairs water pipes": "a plumber", "cuts and styles hair": "a hairdresser", "treats sick animals": "a vet",
        "flies an aeroplane": "a pilot", "designs buildings": "an architect", "bakes bread": "a baker",
        "sells medicine": "a pharmacist", "makes clothes to measure": "a tailor", "carves figures in stone": "a sculptor",
        "keeps bees": "a beekeeper"}),
    "organ": ("Which part of the body {x}?", 1, {
        "pumps blood": "the heart", "takes oxygen from the air": "the lungs", "filters the blood to make urine": "the kidneys",
        "digests food with acid": "the stomach", "is used to hear": "the ears", "controls thought": "the brain",
        "makes bile": "the liver", "covers and protects the whole body": "the skin"}),
    "planet": ("Which planet {x}?", 2, {
        "is closest to the sun": "Mercury", "has the brightest rings": "Saturn", "is known as the red planet": "Mars",
        "is the largest": "Jupiter", "is farthest from the sun": "Neptune", "rotates lying on its side": "Uranus",
        "is hottest at its surface": "Venus"}),
    "currency": ("Which currency is used in {x}?", 1, {
        "Japan": "the yen", "India": "the rupee", "Mexico": "the peso", "Russia": "the rouble", "Germany": "the euro",
        "China": "the yuan", "Sweden": "the krona", "Poland": "the zloty", "Thailand": "the baht", "Hungary": "the forint"}),
    "instrument": ("What does {x} measure?", 1, {
        "a thermometer": "temperature", "a barometer": "air pressure", "a clock": "time", "a speedometer": "speed",
        "a ruler": "length", "a compass": "direction", "a seismograph": "earthquakes", "a hygrometer": "humidity",
        "an anemometer": "wind", "an altimeter": "height"}),
    "home": ("Where does {x} live?", 0, {
        "a bee": "in a hive", "a bird": "in a nest", "a spider": "in a web", "a rabbit": "in a burrow",
        "a camel": "in the desert", "a polar bear": "in the Arctic", "a pig": "in a sty", "a whale": "in the ocean"}),
    "count": ("How many {x}?", 2, {
        "legs does a spider have": "eight", "days does a leap February have": "twenty-nine", "sides does a hexagon have": "six",
        "strings does a violin have": "four", "players of one team are on a football pitch": "eleven",
        "months have thirty-one days": "seven", "hours are in two days": "forty-eight", "squares are on a chess board":
        "sixty-four", "eggs are in a dozen": "twelve"}),
    "language": ("Which language do most people speak in {x}?", 1, {
        "Brazil": "Portuguese", "Austria": "German", "Egypt": "Arabic", "Argentina": "Spanish", "Iran": "Persian",
        "Ireland": "English", "Israel": "Hebrew", "Haiti": "Creole", "Kenya": "Swahili"}),
    "invention_use": ("What is {x} used for?", 0, {
        "a corkscrew": "opening bottles", "a rake": "gathering leaves", "a telescope": "looking at stars",
        "a sieve": "separating lumps", "an anchor": "holding a ship", "a loom": "weaving cloth", "a kiln": "firing clay",
        "a scalpel": "cutting in surgery", "a trowel": "spreading mortar"}),
    "river": ("Through which city does the river {x} flow?", 2, {
        "Thames": "London", "Seine": "Paris", "Tiber": "Rome", "Spree": "Berlin", "Vltava": "Prague", "Liffey": "Dublin",
        "Tagus": "Lisbon", "Danube": "Vienna"}),
    "sound": ("Which animal {x}?", 0, {
        "barks": "a dog", "meows": "a cat", "moos": "a cow", "quacks": "a duck", "neighs": "a horse", "bleats": "a sheep",
        "croaks": "a frog", "hoots": "an owl"}),
    "month": ("Which month comes right after {x}?", 1, {
        "January": "February", "March": "April", "April": "May", "June": "July", "August": "September",
        "October": "November", "November": "December"}),
    "season_or_time": ("What do you call {x}?", 1, {
        "a period of ten years": "a decade", "a period of a hundred years": "a century", "a period of seven days": "a week",
        "a period of fourteen days": "a fortnight", "a period of a thousand years": "a millennium"}),
    "shape": ("Which shape has {x}?", 1, {
        "three sides": "a triangle", "five sides": "a pentagon", "six sides": "a hexagon", "eight sides": "an octagon",
        "no corners": "a circle", "four equal sides and four right angles": "a square"}),
    "past": ("What is the past tense of \"{x}\"?", 1, {
        "go": "went", "buy": "bought", "swim": "swam", "fly": "flew", "teach": "taught", "freeze": "froze", "sing": "sang",
        "dig": "dug"}),
    "metal_use": ("Which metal {x}?", 2, {
        "is liquid at room temperature": "mercury", "rusts in wet air": "iron", "is used for most electric wires": "copper",
        "is beaten into foil for the kitchen": "aluminium", "is used as a shield against X-rays": "lead"}),
    "sense": ("Which part of a plant {x}?", 2, {
        "takes up water from the soil": "the roots", "makes sugar from light": "the leaves", "turns into a fruit": "the flower",
        "carries water up to the leaves": "the stem", "can lie dry for years and still sprout": "the seed"}),
    "science": ("What is the study of {x} called?", 2, {
        "stars and planets": "astronomy", "living things": "biology", "rocks and the earth": "geology", "the weather":
        "meteorology", "plants": "botany", "animals": "zoology", "the mind": "psychology", "insects": "entomology"}),
    "group": ("What is a group of {x} called?", 2, {
        "wolves": "a pack", "cows": "a herd", "fish": "a school", "lions": "a pride", "bees": "a swarm", "crows": "a murder",
        "puppies": "a litter", "ships": "a fleet"}),
}  # fmt: skip
