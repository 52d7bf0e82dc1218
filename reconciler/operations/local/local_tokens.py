"""Tokens of a cluster on this machine: one for its user, one for its nodes, new at each start."""

from pathlib import Path

from reconciler.operations.tokens import token_file


def write(state: Path, identity: str) -> None:
    """Make the cluster's own tokens anew. Those of ``muster token create`` stay.

    Args:
        state: folder of the cluster. ``token`` and ``node-token`` get one each, ``tokens`` all.
        identity: of the user.
    """
    user, node = token_file.new_token(), token_file.new_token()
    digest = token_file.digest_of(node.encode())
    own = (
        token_file.line_of(user, identity, token_file.ADMIN),
        token_file.TokenLine(digest, token_file.ANY_NODE, token_file.NODE),
    )
    lines = [one.text() for one in (*own, *_others(state))]
    for name, content in (("token", [user]), ("node-token", [node]), ("tokens", lines)):
        token_file.write_private(state / name, token_file.joined(content))


def _others(state: Path) -> list[token_file.TokenLine]:
    """Return the lines of tokens that are not of an earlier start."""
    own = {
        token_file.digest_of(path.read_bytes().strip())
        for path in (state / "token", state / "node-token")
        if path.is_file()
    }
    path = state / "tokens"
    try:
        known = token_file.parse(token_file.read(path), path, any_node=True)
    except token_file.TokenError:
        return []  # there is none yet, or it is wrong
    return [one for one in known if one.digest not in own and one.identity != token_file.ANY_NODE]
