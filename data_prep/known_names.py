"""Common names of people and places, by which a literal is known to be one and from which another is taken.

Left out are names that are also everyday words (Mark, Grace, Reading) or the end of other names (York).
"""

from __future__ import annotations

# A name is replaced by one of its own tuple, so that a `he` or `she` of the request stays right.
FIRST_NAMES = (
    (
        "Alice", "Maria", "Sofia", "Emma", "Olivia", "Priya", "Aisha", "Elena", "Hannah", "Sarah", "Emily", "Jane",
        "Anna", "Laura", "Lisa", "Mary", "Linda", "Susan", "Julia", "Nora", "Clara", "Fatima", "Ingrid", "Yuki",
    ),
    (
        "John", "David", "Michael", "James", "Robert", "Daniel", "Carlos", "Ahmed", "Kenji", "Lucas", "Thomas",
        "Peter", "Paul", "George", "William", "Richard", "Steven", "Kevin", "Brian", "Andrew", "Diego", "Omar", "Ivan",
    ),
)  # fmt: skip
LAST_NAMES = (
    "Smith", "Johnson", "Williams", "Jones", "Davis", "Miller", "Wilson", "Anderson", "Taylor", "Thompson", "Garcia",
    "Martinez", "Robinson", "Rodriguez", "Lewis", "Walker", "Nguyen", "Kim", "Patel", "Okafor", "Schneider", "Rossi",
    "Novak", "Haddad", "Tanaka", "Andersen", "Doe",
)  # fmt: skip
# City and the region that is written behind it; a city is replaced by one of its own tuple.
PLACES = (
    (
        ("Paris", "France"), ("London", "UK"), ("Berlin", "Germany"), ("Madrid", "Spain"), ("Rome", "Italy"),
        ("Tokyo", "Japan"), ("Sydney", "Australia"), ("Toronto", "Canada"), ("Mumbai", "India"), ("Lisbon", "Portugal"),
        ("Vienna", "Austria"), ("Oslo", "Norway"), ("Dublin", "Ireland"), ("Athens", "Greece"), ("Cairo", "Egypt"),
        ("Nairobi", "Kenya"), ("Seoul", "South Korea"), ("Lima", "Peru"), ("Prague", "Czechia"),
        ("Warsaw", "Poland"), ("Helsinki", "Finland"), ("Bangkok", "Thailand"), ("Istanbul", "Turkey"),
    ),
    (
        ("New York", "NY"), ("Los Angeles", "CA"), ("San Francisco", "CA"), ("San Diego", "CA"), ("Chicago", "IL"),
        ("Boston", "MA"), ("Seattle", "WA"), ("Denver", "CO"), ("Austin", "TX"), ("Dallas", "TX"), ("Houston", "TX"),
        ("Miami", "FL"), ("Orlando", "FL"), ("Atlanta", "GA"), ("Detroit", "MI"), ("Portland", "OR"),
        ("Philadelphia", "PA"), ("Minneapolis", "MN"), ("Nashville", "TN"), ("Baltimore", "MD"),
    ),
)  # fmt: skip
