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
    "local-loss": "a loss that the client detects without the server",
    "notify": "`NOTIFY`",
    "sentinel": "a client of Sentinel for all families",
}


def title(client, describe):
    """The name of a client of clients.toml, whose runner describes itself so."""
    return f"{client['title']}: {describe['client']}, {describe['runtime']}"


def write(file, titles, results):
    """Replaces the table between the marks. `titles` are those of the clients, by their names."""
    text = file.read_text()
    pattern = re.escape(BEGIN) + ".*?" + re.escape(END)
    assert re.search(pattern, text, re.S), f"{file} lacks the marks of the table"
    table = f"{BEGIN}\n{conformance(titles, results)}\n\n{missing(titles, results)}\n{END}"
    file.write_text(re.sub(pattern, lambda _: table, text, flags=re.S))


def conformance(titles, results):
    groups = [group for group in GROUPS if any(one.group == group for one in results)]
    rows = [f"| client | server | {' | '.join(groups)} |", "|---" * (len(groups) + 2) + "|"]
    for name, title in titles.items():
        for server in sorted({one.server for one in results}):
            own = [one for one in results if (one.client, one.server) == (name, server)]
            cells = [cell([one for one in own if one.group == group]) for group in groups]
            rows.append(f"| {title} | {server} | {' | '.join(cells)} |")
    return "\n".join(rows)


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


def missing(titles, results):
    rows = ["| client | scenarios that it does not run need |", "|---|---|"]
    for name, title in titles.items():
        own = [one for one in results if one.client == name]
        lacks = sorted({lack for one in own for lack in one.lacks})
        if lacks:
            rows.append(f"| {title.split(': ')[0]} | {', '.join(described(lack, own) for lack in lacks)} |")
    return "\n".join(rows) if len(rows) > 2 else "Each client runs all scenarios."


def described(lack, results):
    """What the client lacks, and in which version of the protocol if only in one."""
    protocols = {one.protocol for one in results if lack in one.lacks}
    only = "" if protocols == {one.protocol for one in results} else f" in RESP{protocols.pop()}"
    return NAMES.get(lack, f"`{lack}`") + only
