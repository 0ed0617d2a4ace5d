"""The faults that `seed_faults.py` puts into what the chains need beyond rows."""

from __future__ import annotations

from faults import Fault, tokens


def drafted(name: str, old: str, new: str) -> Fault:
    """Spoil how the requests are found in the arrays."""
    return Fault(name, "chain_errors chains", "_drafted.py", old, new)


def logits(name: str, old: str, new: str) -> Fault:
    """Spoil what chains of logits take."""
    return Fault(name, "chain_logits", "_logits.py", old, new)


def short(name: str, file: str, old: str, new: str) -> Fault:
    """Spoil what is left to the short way."""
    return Fault(f"{name} on the short way", "plain_chains", file, old, new)


CHAIN_FAULTS = (
    short(
        "lengths lost", "_chains.py", "if lengths is None and indptr is None", "if indptr is None"
    ),
    short(
        "bonus ids lost",
        "_chains.py",
        " and bonus_token_ids is None:\n        plain",
        ":\n        plain",
    ),
    short(
        "filters lost",
        "_logits.py",
        "(temperature, draft_temperature, top_k, top_p, min_p, filter_draft),",
        "(temperature, draft_temperature, None, None, None, filter_draft),",
    ),
    drafted("unknown methods accepted", "if name not in METHODS:", "if False:"),
    drafted(
        "both layouts at once accepted",
        "if lengths is not None and indptr is not None:",
        "if False:",
    ),
    drafted(
        "no uniforms accepted",
        "if uniforms is None and not greedy:",
        "if uniforms is None and False:",
    ),
    drafted(
        "the target's rows uncounted",
        "(*(extended if more else leading), vocabulary)",
        "rows.target.shape",
    ),
    drafted(
        "the draft's rows uncounted",
        "rows.views[0], (*leading, vocabulary)",
        "rows.views[0], rows.views[0].shape",
    ),
    drafted(
        "the uniforms uncounted",
        '_expect_shape("uniforms", numbers.uniforms, extended)',
        "pass",
    ),
    drafted("empty rows accepted", "not 0 < target.shape[-1]", "not 0 <= target.shape[-1]"),
    drafted("a falling indptr accepted", "indptr[-1] != tokens or falls:", "indptr[-1] != tokens:"),
    drafted("an indptr that begins late", "not good or indptr[0] != 0", "not good"),
    drafted("an indptr that ends early", " or indptr[-1] != tokens", ""),
    drafted(
        "lengths beyond the width",
        "requests,))\n        expected = f",
        "requests,))\n        longest = 2**40\n        expected = f",
    ),
    drafted(
        "negative lengths and bonus ids", "if not 0 <= number <= largest:", "if number > largest:"
    ),
    drafted(
        "lengths and bonus ids of any size", "if not 0 <= number <= largest:", "if number < 0:"
    ),
    drafted("bonus ids beyond int32", "bonus, _LARGEST_ID, expected", "bonus, 2**40, expected"),
    drafted("a row more with bonus ids", "more = numbers.bonus_token_ids is None", "more = True"),
    Fault(
        "float16 uniforms accepted",
        "chain_errors",
        "_tokens.py",
        'dtype not in {"float32", "float64"}',
        'dtype not in {"float16", "float32", "float64"}',
    ),
    Fault(
        "bfloat16 numbers taken as their bits",
        "chain_arguments",
        "_tokens.py",
        'numbers.float() if dtype == "bfloat16" else numbers',
        "numbers",
    ),
    Fault(
        "bfloat16 ids taken as integers",
        "chain_arguments",
        "_tokens.py",
        "return TORCH.view(numbers.float()",
        "return TORCH.view(numbers.int()",
    ),
    Fault(
        "numbers at odd addresses handed on",
        "chain_arguments",
        "_tokens.py",
        "return packed if packed.flags.aligned else packed.copy()",
        "return packed",
    ),
    Fault(
        "any object a flag",
        "chain_arguments",
        "_tokens.py",
        "if isinstance(flag, bool | np.bool_):",
        "if True:",
    ),
    Fault(
        "lists nested without end looked through",
        "chain_arguments",
        "_kinds.py",
        "if depth > _DEEPEST:",
        "if False:",
    ),
    Fault(
        "the method compared by the caller's code",
        "chain_arguments",
        "_drafted.py",
        "name = str.__str__(method)",
        "name = method",
    ),
    Fault(
        "integers beyond 64 bits wrapped",
        "chain_arguments",
        "_tokens.py",
        "if array.dtype == np.uint64 and array.size and array.max() > _INT64.max:",
        "if False:",
    ),
    Fault(
        "int64 results of chains",
        "chains",
        "_chains.py",
        'rows.kind.wrap(part, "int32", rows.device)',
        'rows.kind.wrap(part.astype("int64"), "int64", rows.device)',
    ),
    Fault(
        "NumPy's results for other libraries",
        "chains",
        "_chains.py",
        'rows.kind.wrap(part, "int32", rows.device)',
        "part",
    ),
    Fault(
        "the draft's rows not used",
        "chains",
        "_chains.py",
        "None if draft_probs is None else rows.draft",
        "None",
    ),
    logits(
        "the draft's temperature not used",
        '_number("draft_temperature", draft_temperature)',
        "target_temperature",
    ),
    logits("top_k not used", '0 if top_k is None else _integer("top_k", top_k)', "0"),
    logits("top_p not used", '1.0 if top_p is None else _number("top_p", top_p)', "1.0"),
    logits("min_p not used", '0.0 if min_p is None else _number("min_p", min_p)', "0.0"),
    logits("drafts never filtered", '_tokens.as_flag("filter_draft", filter_draft)', "False"),
    logits("a negative top_k accepted", "if negative.any():", "if False:"),
    logits("settings of other shapes accepted", "setting.shape != (requests.number,)", "False"),
    logits("uniforms needed at temperature 0", " or _is_zero(target_temperature)", ""),
    tokens(
        "lists of ints taken as uniforms",
        "chain_errors",
        'found.name not in {"float32", "float64"}',
        "False",
    ),
    Fault(
        "draft rows looked at by greedy verification",
        "chain_errors",
        "_chains.py",
        "draft_probs = uniforms = None",
        "uniforms = None",
    ),
    Fault(
        "draft logits looked at by greedy verification",
        "chain_errors",
        "_logits.py",
        "draft_logits = uniforms = None",
        "pass",
    ),
    Fault(
        "rates that are not floats",
        "statistics",
        "_statistics.py",
        "rates.item() if len(draft) == 1",
        "rates[0] if len(draft) == 1",
    ),
)
