"""Small archives in the layouts of the public homes, and what the tables made of them must hold."""

import hashlib
from dataclasses import replace

from adadps_experiments.data.digests import rows_digest
from adadps_experiments.data.named_sets import AMAZON, IMDB, TITLES, Checksum, RowsDigest, SetFile
from support.homes import tar_of

IMDB_NAME, AMAZON_NAME = "aclImdb_v1.tar.gz", "domain_sentiment_data.tar.gz"
IMDB_TABLES = ["imdb_labelled_50k.csv.gz", "imdb_unsup_50k.csv.gz"]

IMDB_TEXTS = {
    "aclImdb/train/pos/0_9.txt": "Fine<br />film, “really”.",
    "aclImdb/train/pos/1_7.txt": ' Said "good",\tquite\x85 ',
    "aclImdb/train/neg/0_2.txt": "Bad.",
    "aclImdb/test/pos/0_10.txt": "Best é.",
    "aclImdb/test/neg/0_1.txt": "Worst.",
    "aclImdb/train/unsup/0_0.txt": "Neither.",
    "aclImdb/train/unsup/1_0.txt": "Nor.",
}
IMDB_URLS = {
    "aclImdb/train/urls_pos.txt": "http://www.imdb.com/title/tt01/usercomments\n" * 2,
    "aclImdb/train/urls_neg.txt": "http://www.imdb.com/title/tt02/usercomments\n",
    "aclImdb/test/urls_pos.txt": "http://www.imdb.com/title/tt03/usercomments\n",
    "aclImdb/test/urls_neg.txt": "http://www.imdb.com/title/tt04/usercomments\n",
    "aclImdb/train/urls_unsup.txt": "http://www.imdb.com/title/tt05/usercomments\n" * 2,
}
IMDB_OTHERS = {"aclImdb/README": "A set.", "aclImdb/train/labeledBow.feat": "9 0:1\n"}
IMDB_FILES = IMDB_TEXTS | IMDB_URLS | IMDB_OTHERS
IMDB_ROWS = [
    ["train", "0", "9", "1", "tt01", "Fine<br />film, “really”."],
    ["train", "1", "7", "1", "tt01", ' Said "good",\tquite\x85 '],
    ["train", "0", "2", "0", "tt02", "Bad."],
    ["test", "0", "10", "1", "tt03", "Best é."],
    ["test", "0", "1", "0", "tt04", "Worst."],
]
IMDB_UNLABELLED_ROWS = [["0", "tt05", "Neither."], ["1", "tt05", "Nor."]]


def review(rating, title, text, person):
    return (
        f"<review>\n<unique_id>\n1:x\n</unique_id>\n<unique_id>\n7\n</unique_id>\n"
        f"<rating>\n{rating}\n</rating>\n<title>\n{title}\n</title>\n"
        f"<reviewer>\n{person}\n</reviewer>\n<review_text>\n{text}\n</review_text>\n</review>\n"
    )


FOLDERS = {
    "books": "books",
    "dvd": "dvd",
    "electronics": "electronics",
    "kitchen": "kitchen_&_housewares",
}
AMAZON_FILES = {
    f"sorted_data_acl/{folder}/{kind}.review": (
        review(rating, f"{domain} title", f"{kind} text,\n\nmore &quot;of&quot; it", "Ann, Ohio")
        + review(rating, "Second", f"a < b in {domain}", "Bob")
    )
    for domain, folder in FOLDERS.items()
    for kind, rating in (("positive", "5.0"), ("negative", "1.0"))
} | {"sorted_data_acl/books/unlabeled.review": review("3.0", "t", "unlabelled", "Cy")}
AMAZON_ROWS = [
    row
    for domain in FOLDERS
    for kind, label, rating in (("positive", "1", "5.0"), ("negative", "0", "1.0"))
    for row in (
        [
            domain,
            label,
            rating,
            "0",
            f"{domain} title",
            f"{kind} text,\n\nmore &quot;of&quot; it",
        ],
        [domain, label, rating, "1", "Second", f"a < b in {domain}"],
    )
]

TITLES_TSV = b"title\ttags\nWhy does it fail?\t['php', 'sql']\n\"A \"\"quoted\"\" title\"\t['c#']\n"
TITLES_ROWS = [["Why does it fail?", "php sql"], ['A "quoted" title', "c#"]]


def imdb_archive(**changed):
    return tar_of(IMDB_FILES | changed)


def amazon_archive():
    return tar_of(AMAZON_FILES)


def known_as(known, rows_of, archive=None):
    """The named set with the digests of a small one: those of rows that the test states itself."""
    files = tuple(
        SetFile(
            file.name,
            rows=RowsDigest(
                file.rows.columns,
                rows_digest(rows, [file.rows.columns.index(name) for name in file.rows.exact]),
                file.rows.exact,
            ),
        )
        for file, rows in zip(known.files, rows_of, strict=True)
    )
    checksum = Checksum("md5", hashlib.md5(archive).hexdigest()) if archive else None
    (original,) = known.archives
    return replace(known, files=files, archives=(replace(original, checksum=checksum),))


def small_imdb(archive=None):
    labelled = [[row[0], row[3], row[4], row[5]] for row in IMDB_ROWS]
    return known_as(IMDB, (labelled, [[row[2]] for row in IMDB_UNLABELLED_ROWS]), archive)


def small_amazon():
    return known_as(AMAZON, ([[row[0], row[1], row[4], row[5]] for row in AMAZON_ROWS],))


def small_titles():
    return known_as(TITLES, (TITLES_ROWS,))
