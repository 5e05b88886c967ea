"""Writes the table of docs/clients.md from the results of a run."""

import re

BEGIN, END = "<!-- `make conformance` writes the table: begin -->", "<!-- end -->"

GROUPS = ("lost replies", "killed connections", "replies", "moving slots", "failover under Sentinel", "a paused server")

# What a client can lack, besides operations.
NAMES = {
    "bound": "holds that end with their connection",
    "cluster": "a client of a cluster",
    "follow": "holds that move with their hash slot (the holder learns of the loss)",
    "linger": "holds that survive a broken connection",
    "lock.acquire in a cluster": "locks in a cluster",
    "local-loss": "a loss that the client detects without the server",
    "notify": "`NOTIFY`",
    "sentinel": "a client of Sentinel for all families",
}


def title(client, describe):
    """The name of a client of clients.toml, whose runner describes itself so."""
    return f"{client['title']}: {describe['client']}, {describe['runtime']}"


def write(file, order, titles, results):
    """Replaces the rows of these clients between the marks. `titles` are those of the clients, by their names; `order` has the titles of
    all clients in clients.toml, in their order. The rows of other clients stay."""
    text = file.read_text()
    pattern = re.escape(BEGIN) + "(.*?)" + re.escape(END)
    found = re.search(pattern, text, re.S)
    assert found, f"{file} lacks the marks of the table"
    old = [line for line in found[1].splitlines() if line.startswith("| ")]
    table = f"{BEGIN}\n{conformance(order, titles, results, old)}\n\n{missing(order, titles, results, old)}\n{END}"
    file.write_text(re.sub(pattern, lambda _: table, text, flags=re.S))


def sorted_rows(order, new, old, width):
    """The new rows, and the old ones of other clients and servers. Rows are found by their first `width` cells."""
    def key(row):
        client, *rest = row.strip("| ").split(" | ")[:width]
        return (order.index(client.split(": ")[0]), *rest)

    rows = {key(row): row for row in old if row.split(": ")[0].strip("| ").split(" | ")[0] in order}
    rows.update((key(row), row) for row in new)
    return [rows[one] for one in sorted(rows)]


def conformance(order, titles, results, old):
    rows = []
    for name, title in titles.items():
        for server in sorted({one.server for one in results}):
            own = [one for one in results if (one.client, one.server) == (name, server)]
            cells = [cell([one for one in own if one.group == group]) for group in GROUPS]
            rows.append(f"| {title} | {server} | {' | '.join(cells)} |")
    old = [row for row in old if row.count(" | ") == len(GROUPS) + 1]
    head = [f"| client | server | {' | '.join(GROUPS)} |", "|---" * (len(GROUPS) + 2) + "|"]
    return "\n".join(head + sorted_rows(order, rows, old, 2))


def cell(results):
    applicable = [one for one in results if not one.lacks]
    if failed := len([one for one in applicable if one.error]):
        return f"**{failed} failed**"
    if not applicable:
        return "–" if results else "not run"
    count = len({one.name for one in applicable})
    all_of_them = len({one.name for one in results})
    share = str(count) if count == all_of_them else f"{count} of {all_of_them}"
    protocols = {one.protocol for one in applicable}
    only = "" if protocols == {one.protocol for one in results} else f", RESP{protocols.pop()}"
    return f"{share} ({sum(one.runs for one in applicable)}{only})"


def missing(order, titles, results, old):
    rows = []
    for name, title in titles.items():
        own = [one for one in results if one.client == name]
        lacks = sorted({lack for one in own for lack in one.lacks})
        if lacks:
            rows.append(f"| {title.split(': ')[0]} | {', '.join(described(lack, own) for lack in lacks)} |")
    current = {title.split(": ")[0] for title in titles.values()}
    old = [row for row in old if row.count(" | ") == 1 and row.strip("| ").split(" | ")[0] not in current]
    rows = sorted_rows(order, rows, old, 1)
    if not rows:
        return "Each client runs all scenarios."
    return "\n".join(["| client | scenarios that it does not run need |", "|---|---|", *rows])


def described(lack, results):
    """What the client lacks, and in which version of the protocol if only in one."""
    protocols = {one.protocol for one in results if lack in one.lacks}
    only = "" if protocols == {one.protocol for one in results} else f" in RESP{protocols.pop()}"
    return NAMES.get(lack, f"`{lack}`") + only
