"""The verification in the layouts of engines: their argument names, shapes, padding and id types.

Each function takes what one place in one engine has at hand and hands it to `draftverify` as it
lies in memory: no probability is copied, and what is computed is computed by the library, with its
bits, checks and errors. Where an engine draws random numbers itself, these functions take uniforms.

========================== ========================================================================
module                     verification of
========================== ========================================================================
`adapters.transformers`    Transformers' assisted generation, to be put in place during ``generate``
`adapters.vllm`            vLLM: the sampler of V1, and that of Model Runner V2
`adapters.sglang`          SGLang: chains by rejection sampling
`adapters.flashinfer`      FlashInfer: ``chain_speculative_sampling``
`adapters.tensorrt_llm`    TensorRT-LLM: one engine for both models, and two
`adapters.vocabulary`      draft models with another vocabulary than the target's, for all of them
========================== ========================================================================

Import the one that is needed, as in ``from draftverify.adapters import flashinfer``. The engines
themselves are not imported; tensors are Torch's. Each docstring names the file and the version that
it was written from.
"""
