"""SGLang's verification of chains by rejection sampling.

Written from SGLang 0.5.23, ``sglang/kernels/ops/speculative/reject_sampling.py``
(``chain_speculative_sampling_triton``) and its caller, ``eagle_sample`` in
``sglang/srt/speculative/eagle_utils.py``.
"""

from __future__ import annotations

from draftverify import verify_chain
from draftverify.adapters._torch import (
    Tensor,
    expect_integers,
    expect_ndim,
    expect_outputs,
    expect_shape,
    expect_tensors,
    expect_uniforms,
    in_words_of_the_engine,
)


@in_words_of_the_engine(
    draft_token_ids="candidates",
    uniforms="uniform_samples and uniform_samples_for_final_sampling",
)
def chain_speculative_sampling(  # noqa: PLR0913, PLR0917 - SGLang's arguments
    predicts: Tensor,
    accept_index: Tensor,
    accept_token_num: Tensor,
    candidates: Tensor,
    retrive_index: Tensor,
    retrive_next_token: Tensor | None,
    retrive_next_sibling: Tensor | None,
    uniform_samples: Tensor,
    uniform_samples_for_final_sampling: Tensor,
    target_probs: Tensor,
    draft_probs: Tensor | None,
    threshold_single: float = 1.0,
    threshold_acc: float = 1.0,
    deterministic: bool = True,
    *,
    block_verification: bool = False,
) -> None:
    """Verify chains as SGLang's ``chain_speculative_sampling_triton`` does, in place.

    Parameters
    ----------
    predicts : Tensor, shape (num_tokens,), int32
        Written: at the place of each accepted token, the root being the first, the id that follows
        it. Others are left as they are.
    accept_index : Tensor, shape (bs, depth), int32, depth >= num_draft_tokens
        Written: the places of the root and of the accepted tokens. SGLang hands it over full of -1,
        and the places behind are left as they are.
    accept_token_num : Tensor, shape (bs,), int32
        Written: how many drafted tokens are accepted, without the root and the final token.
    candidates : Tensor, shape (bs, num_draft_tokens), int64
        The last verified id of each request, the root, and its drafted ids. There is no padding.
    retrive_index : Tensor, shape (bs, num_draft_tokens), int64
        The places of the candidates in ``predicts``.
    retrive_next_token, retrive_next_sibling : Tensor or None
        Not used, as in SGLang: in a chain each candidate follows the one before it.
    uniform_samples : Tensor, shape (bs, num_draft_tokens), float32
        Numbers in [0, 1) for the drafted tokens; the last of each request is not used.
    uniform_samples_for_final_sampling : Tensor, shape (bs,), float32
        Numbers in [0, 1) for the final draws. All must be independent of each other and of the
        drafting.
    target_probs : Tensor, shape (bs, num_draft_tokens, vocab_size)
        The target's probabilities behind each candidate, float32 in SGLang; float16, bfloat16 and
        float64 here too. Any strides.
    draft_probs : Tensor, shape (bs, num_draft_tokens - 1, vocab_size), or None
        The draft's probabilities behind each candidate but the last. None, which SGLang has not,
        for proposals that were the only possible ones.
    threshold_single, threshold_acc, deterministic
        Not used, as in SGLang: this verification is exact.
    block_verification : bool, default False
        Look at chains as a whole, with ``method="block"``: more is accepted, by the same law.

    Raises
    ------
    TypeError, ValueError, NotImplementedError
        As of `draftverify.verify_chain`; no Torch tensors; outputs of another dtype, shape or
        device, or that share memory. Nothing is written then. SGLang rejects a token whose draft
        probability is 0 or NaN; here it is refused.

    Examples
    --------
    >>> import torch
    >>> predicts = torch.zeros(3, dtype=torch.int32)
    >>> accept_index = torch.full((1, 3), -1, dtype=torch.int32)
    >>> accept_token_num = torch.zeros(1, dtype=torch.int32)
    >>> chain_speculative_sampling(
    ...     predicts,
    ...     accept_index,
    ...     accept_token_num,
    ...     candidates=torch.tensor([[7, 1, 1]]),
    ...     retrive_index=torch.tensor([[0, 1, 2]]),
    ...     retrive_next_token=None,
    ...     retrive_next_sibling=None,
    ...     uniform_samples=torch.tensor([[0.9, 0.5, 0.0]]),
    ...     uniform_samples_for_final_sampling=torch.tensor([0.1]),
    ...     target_probs=torch.tensor([[[0.5, 0.5], [0.75, 0.25], [1.0, 0.0]]]),
    ...     draft_probs=torch.tensor([[[0.5, 0.5], [0.25, 0.75]]]),
    ... )
    >>> predicts, accept_index, accept_token_num
    (tensor([1, 0, 0], dtype=torch.int32), tensor([[ 0,  1, -1]], dtype=torch.int32), tensor([1], \
dtype=torch.int32))
    """
    del retrive_next_token, retrive_next_sibling, threshold_single, threshold_acc, deterministic
    expect_tensors(
        predicts=predicts,
        accept_index=accept_index,
        accept_token_num=accept_token_num,
        candidates=candidates,
        retrive_index=retrive_index,
        uniform_samples=uniform_samples,
        uniform_samples_for_final_sampling=uniform_samples_for_final_sampling,
        target_probs=target_probs,
    )
    import torch  # noqa: PLC0415 - the caller has imported it

    expect_ndim("candidates", candidates, "(B, K)", "pass a row for each request")
    expect_ndim("target_probs", target_probs, "(B, K, V)", "pass a row for each candidate")
    requests, slots = candidates.shape
    if slots == 0:
        message = f"candidates: expected the root at least, got shape {tuple(candidates.shape)}; "
        raise ValueError(message + "pass the last verified id of each request in front")
    final = uniform_samples_for_final_sampling
    expect_ndim("predicts", predicts, "(T,)", "flatten it")
    expect_shape("retrive_index", retrive_index, (requests, slots), "pass a place a candidate")
    expect_shape("uniform_samples", uniform_samples, (requests, slots), "pass one a candidate")
    expect_shape("uniform_samples_for_final_sampling", final, (requests,), "pass one a request")
    expect_shape("accept_token_num", accept_token_num, (requests,), "pass one a request")
    if accept_index.ndim != 2 or accept_index.shape[0] != requests or accept_index.shape[1] < slots:  # noqa: PLR2004
        message = (
            f"accept_index: expected shape ({requests}, {slots}) or wider, got "
            f"{tuple(accept_index.shape)}; pass a place for each candidate"
        )
        raise ValueError(message)
    expect_integers("candidates", candidates)
    expect_integers("retrive_index", retrive_index)
    expect_outputs(
        torch.int32,
        target_probs,
        predicts=predicts,
        accept_index=accept_index,
        accept_token_num=accept_token_num,
    )
    expect_uniforms(uniform_samples=uniform_samples, uniform_samples_for_final_sampling=final)
    verdict = verify_chain(
        draft_probs,
        target_probs,
        candidates[:, 1:],
        torch.cat([uniform_samples[:, :-1], final[:, None]], dim=1),
        lengths=torch.full((requests,), slots - 1),
        method="block" if block_verification else "standard",
    )
    written = verdict.token_ids >= 0
    places = retrive_index[written].long()
    if requests and not 0 <= int(places.min()) <= int(places.max()) < predicts.shape[0]:
        message = (
            f"retrive_index: expected places from 0 to {predicts.shape[0] - 1}, as predicts is "
            f"long, got {int(places.min())} to {int(places.max())}; pass those of this batch"
        )
        raise ValueError(message)
    predicts[places] = verdict.token_ids[written]
    accept_index[:, :slots][written] = places.to(accept_index.dtype)
    accept_token_num.copy_(verdict.num_accepted)
