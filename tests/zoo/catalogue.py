"""The architectures of the zoo: how each is made from its library's code, with which inputs, and how it is exported."""

import contextlib
import dataclasses
import typing

import torch

OPSETS = (17, 11, 18, 12, 14, 20, 13, 16, 19, 15)


@dataclasses.dataclass
class Entry:
    name: str
    library: str
    # Gives the model and its arguments.
    build: typing.Callable
    opset: int = 17
    # Names of the dimensions that are open, by argument and axis.
    axes: dict | None = None
    exporters: tuple = ("ts", "dynamo")
    # Whether it is run at every push.
    fast: bool = False
    note: str = ""


MODELS: list[Entry] = []


def add(name, library, build, **kwargs):
    kwargs.setdefault("opset", OPSETS[len(MODELS) % len(OPSETS)])
    MODELS.append(Entry(name, library, build, **kwargs))


def images(size, batch=1):
    return torch.rand(batch, 3, size, size) * 2 - 1


def tokens(count, vocabulary=1000, batch=1):
    return torch.randint(0, vocabulary, (batch, count))


# Untrained, their numbers die out on the way: what comes out would be the last layer's bias, whatever went in.
FAINT = (
    "cait_xxs24_224",
    "deeplabv3_mobilenet_v3_large",
    "efficientvit_b0",
    "ghostnet_050",
    "googlenet",
    "mobilevit_hf",
    "repvgg_a0",
    "repvit_m0_9",
    "s3d",
    "shufflenet_v2_x0_5",
    "wav2letter",
)


def settled(model, *arguments, least=1e-6):
    """Gives normalisations the spread of what they are given: with that of an untrained model numbers grow from layer to
    layer, or die out. One number for all channels, which drawn weights have, too. Scales that begin at next to nothing
    are a tenth. Where nothing normalises, weights are as large as keeps numbers what they are."""

    def settle(module, given):
        module.running_mean.zero_()
        module.running_var.fill_(float(given[0].detach().pow(2).mean()) + least)

    import torchvision

    kinds = (torch.nn.BatchNorm2d, torch.nn.BatchNorm3d, torchvision.ops.FrozenBatchNorm2d)
    hooks = [module.register_forward_pre_hook(settle) for module in model.modules() if isinstance(module, kinds)]
    with torch.no_grad():
        for module in model.modules() if not hooks else ():
            if isinstance(module, (torch.nn.Conv1d, torch.nn.Conv2d, torch.nn.Linear)):
                torch.nn.init.kaiming_normal_(module.weight, nonlinearity="relu")
        for part in model.parameters():
            if part.ndim == 1 and 0 < part.abs().max() < 1e-3:
                part.fill_(0.1)
        model.eval()(*arguments)
    for hook in hooks:
        hook.remove()
    return model


def lively(name, model, arguments):
    """A model and its arguments; one of `FAINT` settled."""
    return (settled(model, *arguments) if name in FAINT else model), arguments


# --- torchvision -----------------------------------------------------------------------------------------------------


def vision(name, size=96, fast=False, **kwargs):
    def build():
        import torchvision

        extra = {"init_weights": True, "aux_logits": True} if name in ("inception_v3", "googlenet") else {}
        return lively(name, torchvision.models.get_model(name, weights=None, **extra), [images(size)])

    add(name, "torchvision", build, fast=fast, **kwargs)


BATCH = {0: {0: "batch"}}
for name, size in [
    ("alexnet", 224),
    ("vgg11_bn", 224),
    ("resnet18", 96),
    ("resnet50", 96),
    ("resnext50_32x4d", 96),
    ("wide_resnet50_2", 64),
    ("densenet121", 64),
    ("squeezenet1_1", 96),
    ("inception_v3", 128),
    ("googlenet", 96),
    ("mobilenet_v2", 96),
    ("mobilenet_v3_small", 96),
    ("mnasnet0_5", 96),
    ("shufflenet_v2_x0_5", 96),
    ("efficientnet_b0", 96),
    ("efficientnet_v2_s", 96),
    ("regnet_y_400mf", 96),
    ("regnet_x_400mf", 96),
    ("convnext_tiny", 96),
    ("vit_b_16", 224),
    ("swin_t", 96),
    ("swin_v2_t", 128),
    ("maxvit_t", 224),
]:
    fast = name in ("mobilenet_v3_small", "shufflenet_v2_x0_5", "squeezenet1_1", "mnasnet0_5", "regnet_y_400mf")
    axes = BATCH if name in ("resnet50", "mobilenet_v2", "mobilenet_v3_small", "densenet121", "convnext_tiny") else None
    vision(name, size, fast, axes=axes)


def segmentation(name, size=96):
    def build():
        import torchvision

        model = torchvision.models.get_model(name, weights=None, weights_backbone=None)
        return lively(name, OneOf(model), [images(size)])

    add(name, "torchvision", build)


class OneOf(torch.nn.Module):
    """The results of a model that gives a dictionary, one by one."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, *arguments):
        made = self.model(*arguments)
        return tuple(made[key] for key in sorted(made) if isinstance(made[key], torch.Tensor))


for name in ("fcn_resnet50", "deeplabv3_mobilenet_v3_large", "lraspp_mobilenet_v3_large"):
    segmentation(name)


class Detector(torch.nn.Module):
    """A detector of one image that gives tensors."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, image):
        made = self.model([image])[0]
        return tuple(made[key] for key in made)


def spread_scores(model, gain):
    """Random heads say much the same everywhere; with larger weights, boxes and scores differ by more than rounding. With
    too large ones every score is one."""
    for part, module in model.named_modules():
        is_head = any(word in part for word in ("cls", "class", "score", "logits", "head"))
        if is_head and isinstance(module, (torch.nn.Conv2d, torch.nn.Linear)):
            torch.nn.init.normal_(module.weight, std=gain * (2.0 / module.weight[0].numel()) ** 0.5)
    return model


def detector(name, size, fast=False, gain=1.0, **kwargs):
    def build():
        import torchvision

        own = dict(weights=None, weights_backbone=None, **kwargs)
        image = torch.rand(3, size, size)
        model = settled(spread_scores(torchvision.models.get_model(name, **own), gain), [image], least=0.01)
        return Detector(model), [image]

    opset = 11 if name in ("ssd300_vgg16", "maskrcnn_resnet50_fpn") else 17
    # torch.export refuses all of them: what they do depends on how many boxes there are.
    add(name, "torchvision", build, fast=fast, opset=opset, exporters=("ts",))


SMALL = {"min_size": 128, "max_size": 160}
RCNN = SMALL | {
    "rpn_pre_nms_top_n_test": 60,
    "rpn_post_nms_top_n_test": 30,
    "box_detections_per_img": 8,
    "box_score_thresh": 0.02,
}
detector("ssd300_vgg16", 300, score_thresh=0.02, topk_candidates=20, detections_per_img=20)
detector(
    "ssdlite320_mobilenet_v3_large", 320, fast=True, score_thresh=0.02, topk_candidates=20, detections_per_img=20
)
detector("fasterrcnn_mobilenet_v3_large_320_fpn", 128, fast=True, **RCNN)
detector("fasterrcnn_mobilenet_v3_large_fpn", 128, **RCNN)
detector("fasterrcnn_resnet50_fpn", 128, **RCNN)
detector("fasterrcnn_resnet50_fpn_v2", 128, **RCNN)
detector("maskrcnn_resnet50_fpn", 128, **RCNN)
detector("maskrcnn_resnet50_fpn_v2", 128, **RCNN)
detector("keypointrcnn_resnet50_fpn", 128, **RCNN)
DENSE = SMALL | {"topk_candidates": 20, "detections_per_img": 20, "score_thresh": 0.02}
detector("retinanet_resnet50_fpn", 128, gain=0.5, **DENSE)
detector("retinanet_resnet50_fpn_v2", 128, **DENSE)
detector("fcos_resnet50_fpn", 128, **DENSE)


def video(name, frames, size):
    def build():
        import torchvision

        return lively(name, torchvision.models.get_model(name, weights=None), [torch.rand(1, 3, frames, size, size)])

    add(name, "torchvision", build)


for name, frames, size in [
    ("r3d_18", 8, 56),
    ("r2plus1d_18", 8, 56),
    ("s3d", 16, 224),
    ("swin3d_t", 8, 64),
]:
    video(name, frames, size)


def flow():
    import torchvision

    class Last(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.model = torchvision.models.optical_flow.raft_small(weights=None)

        def forward(self, a, b):
            return self.model(a, b, num_flow_updates=2)[-1]

    return Last(), [images(128), images(128)]


add("raft_small", "torchvision", flow, opset=17)

# --- timm ------------------------------------------------------------------------------------------------------------


def timm_model(name, size, fast=False, axes=None):
    def build():
        import timm

        return lively(name, timm.create_model(name, pretrained=False, exportable=True), [images(size)])

    add(name, "timm", build, fast=fast, axes=axes)


for name, size in [
    ("deit_tiny_patch16_224", 224),
    ("mixer_s32_224", 224),
    ("gmixer_12_224", 224),
    ("resmlp_12_224", 224),
    ("poolformer_s12", 96),
    ("levit_128s", 224),
    ("efficientformer_l1", 224),
    ("mobilevit_xxs", 128),
    ("mobilevitv2_050", 128),
    ("edgenext_xx_small", 96),
    ("ghostnet_050", 96),
    ("hrnet_w18_small", 96),
    ("tf_efficientnet_lite0", 96),
    ("cait_xxs24_224", 224),
    ("pit_ti_224", 224),
    ("xcit_nano_12_p16_224", 224),
    ("coat_lite_tiny", 224),
    ("twins_svt_small", 224),
    ("repvgg_a0", 96),
    ("dla34", 96),
    ("res2net50_26w_4s", 64),
    ("skresnet18", 96),
    ("seresnet50", 64),
    ("eca_botnext26ts_256", 256),
    ("halonet26t", 256),
    ("lambda_resnet26t", 256),
    ("visformer_tiny", 224),
    ("crossvit_tiny_240", 240),
    ("davit_tiny", 96),
    ("focalnet_tiny_srf", 224),
    ("fastvit_t8", 96),
    ("inception_next_atto", 96),
    ("mobilenetv4_conv_small", 96),
    ("tiny_vit_5m_224", 224),
    ("efficientvit_b0", 96),
    ("repvit_m0_9", 96),
    ("rexnet_100", 96),
    ("nf_resnet26", 64),
    ("convnextv2_atto", 96),
    ("starnet_s1", 96),
]:
    fast = name in ("mobilevit_xxs", "ghostnet_050", "efficientvit_b0", "inception_next_atto", "edgenext_xx_small")
    axes = BATCH if name in ("mobilevit_xxs", "ghostnet_050", "repvgg_a0", "convnextv2_atto") else None
    timm_model(name, size, fast, axes)

# --- transformers ----------------------------------------------------------------------------------------------------


class Given(torch.nn.Module):
    """A model whose arguments go by name and whose results are a tuple of tensors."""

    def __init__(self, model, names, results):
        super().__init__()
        self.model, self.names, self.results = model, names, results

    def forward(self, *arguments):
        made = self.model(**dict(zip(self.names, arguments)))
        return tuple(made[name] for name in self.results)


def broadcast_masks(masking):
    """Masks by broadcasting: the library maps a function over every pair of places, which no exporter follows."""

    def pairs(function, bh_indices=True):
        def mask(batch, head, queries, keys):
            lines = (batch, head, queries, keys) if bh_indices else (queries, keys)
            ones = [1] * len(lines)
            spread = [line.reshape(*ones[:at], -1, *ones[at + 1 :]) for at, line in enumerate(lines)]
            made = function(*spread) if bh_indices else function(None, None, *spread)
            return made.expand([line.shape[0] for line in lines])

        return mask

    masking._vmap_for_bhqkv = pairs
    # Which the mapping needs, and indices that are tensors do not.
    masking.TransformGetItemToIndex = contextlib.nullcontext
    # Whether several texts stand in a row is looked for by an operator that ONNX lacks; here there is one.
    masking.find_packed_sequence_indices = lambda position_ids: None


def hub(name, model, config, inputs, results=("last_hidden_state",), fast=False, axes=None, opset=None, **settings):
    """A model of transformers by the names of its classes; `inputs` names and makes its arguments."""

    def build():
        import transformers

        broadcast_masks(transformers.masking_utils)
        made = getattr(transformers, config)(**settings)
        made._attn_implementation = "sdpa" if name in ("vit_hf", "llama") else "eager"
        made.use_cache = False
        made.return_dict = True
        if getattr(made, "is_encoder_decoder", False):
            made.decoder_start_token_id = 0
        model_ = getattr(transformers, model)(made)
        arguments = inputs()
        return lively(name, Given(model_, list(arguments), results), list(arguments.values()))

    more = {} if opset is None else {"opset": opset}
    add(name, "transformers", build, fast=fast, axes=axes, **more)


TEXT = {"vocab_size": 1000, "hidden_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 256}
SEQUENCE = {0: {0: "batch", 1: "sequence"}}


def text(count=24):
    return lambda: {"input_ids": tokens(count), "attention_mask": torch.ones(1, count, dtype=torch.int64)}


def ids(count=24, batch=1):
    return lambda: {"input_ids": tokens(count, batch=batch)}


hub("bert", "BertModel", "BertConfig", text(), fast=True, axes={0: SEQUENCE[0], 1: SEQUENCE[0]}, **TEXT)
hub("roberta", "RobertaModel", "RobertaConfig", text(), **TEXT)
hub("distilbert", "DistilBertModel", "DistilBertConfig", text(), vocab_size=1000, dim=128, n_layers=2, n_heads=4, hidden_dim=256)
hub("albert", "AlbertModel", "AlbertConfig", text(), embedding_size=64, **TEXT)
hub("electra", "ElectraModel", "ElectraConfig", text(), embedding_size=64, **TEXT)
hub("deberta_v2", "DebertaV2Model", "DebertaV2Config", text(), relative_attention=True, pos_att_type=["p2c", "c2p"], position_buckets=16, **TEXT)
hub("mpnet", "MPNetModel", "MPNetConfig", text(), **TEXT)
hub("convbert", "ConvBertModel", "ConvBertConfig", text(), embedding_size=64, **TEXT)
hub("squeezebert", "SqueezeBertModel", "SqueezeBertConfig", text(), embedding_size=128, **TEXT)
hub("mobilebert", "MobileBertModel", "MobileBertConfig", text(), vocab_size=1000, num_hidden_layers=2)
hub("funnel", "FunnelBaseModel", "FunnelConfig", text(), vocab_size=1000, block_sizes=[1, 1], d_model=128, n_head=4, d_head=32, d_inner=256)
hub("xlnet", "XLNetModel", "XLNetConfig", ids(), vocab_size=1000, d_model=128, n_layer=2, n_head=4, d_inner=256)
hub("gpt2", "GPT2LMHeadModel", "GPT2Config", ids(), ("logits",), fast=True, axes=SEQUENCE, vocab_size=1000, n_embd=128, n_layer=2, n_head=4)
hub("gpt_neo", "GPTNeoForCausalLM", "GPTNeoConfig", ids(), ("logits",), opset=14, vocab_size=1000, hidden_size=128, num_layers=2, num_heads=4, attention_types=[[["global", "local"], 1]])
hub("opt", "OPTForCausalLM", "OPTConfig", text(), ("logits",), vocab_size=1000, hidden_size=128, num_hidden_layers=2, num_attention_heads=4, ffn_dim=256, word_embed_proj_dim=128)
hub("bloom", "BloomForCausalLM", "BloomConfig", text(), ("logits",), vocab_size=1000, hidden_size=128, n_layer=2, n_head=4)
for name, kind in [("llama", "Llama"), ("mistral", "Mistral"), ("qwen2", "Qwen2"), ("gemma", "Gemma"), ("phi", "Phi"), ("olmo", "Olmo"), ("stablelm", "StableLm")]:
    own = TEXT | {"num_key_value_heads": 2}
    own |= {"head_dim": 32} if name == "gemma" else {}
    hub(name, f"{kind}ForCausalLM", f"{kind}Config", ids(), ("logits",), fast=name == "llama", axes=SEQUENCE if name in ("llama", "qwen2") else None, **own)


def both(count=16):
    return lambda: {"input_ids": tokens(count), "decoder_input_ids": tokens(8)}


hub("t5", "T5ForConditionalGeneration", "T5Config", both(), ("logits",), fast=True, opset=14, vocab_size=1000, d_model=128, d_kv=32, d_ff=256, num_layers=2, num_heads=4)
hub("bart", "BartForConditionalGeneration", "BartConfig", both(), ("logits",), vocab_size=1000, d_model=128, encoder_layers=2, decoder_layers=2, encoder_attention_heads=4, decoder_attention_heads=4, encoder_ffn_dim=256, decoder_ffn_dim=256)
hub("marian", "MarianMTModel", "MarianConfig", both(), ("logits",), vocab_size=1000, pad_token_id=999, d_model=128, encoder_layers=2, decoder_layers=2, encoder_attention_heads=4, decoder_attention_heads=4, encoder_ffn_dim=256, decoder_ffn_dim=256)
hub("whisper", "WhisperForConditionalGeneration", "WhisperConfig", lambda: {"input_features": torch.randn(1, 80, 200), "decoder_input_ids": tokens(8)}, ("logits",), vocab_size=1000, pad_token_id=0, bos_token_id=1, eos_token_id=2, d_model=128, encoder_layers=2, decoder_layers=2, encoder_attention_heads=4, decoder_attention_heads=4, encoder_ffn_dim=256, decoder_ffn_dim=256, max_source_positions=100)
SOUND = {"hidden_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 256, "conv_dim": (64,) * 7, "num_conv_pos_embeddings": 16, "num_conv_pos_embedding_groups": 4}
hub("wav2vec2", "Wav2Vec2Model", "Wav2Vec2Config", lambda: {"input_values": torch.randn(1, 8000)}, **SOUND)
hub("hubert", "HubertModel", "HubertConfig", lambda: {"input_values": torch.randn(1, 8000)}, **SOUND)
hub("sew", "SEWModel", "SEWConfig", lambda: {"input_values": torch.randn(1, 8000)}, **(SOUND | {"squeeze_factor": 2, "conv_dim": (64,) * 13}))
hub("ast", "ASTModel", "ASTConfig", lambda: {"input_values": torch.randn(1, 128, 128)}, hidden_size=128, num_hidden_layers=2, num_attention_heads=4, intermediate_size=256, num_mel_bins=128, max_length=128)
hub("vits", "VitsModel", "VitsConfig", lambda: {"input_ids": tokens(20, 38)}, ("waveform",), hidden_size=64, num_hidden_layers=2, ffn_dim=128, flow_size=64, spectrogram_bins=65, upsample_initial_channel=64, use_stochastic_duration_prediction=False, noise_scale=0.0, noise_scale_duration=0.0)
SEEN = {"hidden_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 256, "image_size": 64}


def seen(size=64):
    return lambda: {"pixel_values": images(size)}


hub("vit_hf", "ViTModel", "ViTConfig", seen(), fast=True, **SEEN)
hub("beit", "BeitModel", "BeitConfig", seen(), use_relative_position_bias=True, **SEEN)
hub("dinov2", "Dinov2Model", "Dinov2Config", seen(56), **(SEEN | {"image_size": 56}))
hub("siglip", "SiglipVisionModel", "SiglipVisionConfig", seen(), **SEEN)
hub("clip", "CLIPModel", "CLIPConfig", lambda: {"input_ids": tokens(16), "pixel_values": images(64), "attention_mask": torch.ones(1, 16, dtype=torch.int64)}, ("logits_per_image", "text_embeds"), text_config={"vocab_size": 1000, "hidden_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 256, "eos_token_id": 2}, vision_config=SEEN | {"patch_size": 16}, projection_dim=64)
hub("segformer", "SegformerForSemanticSegmentation", "SegformerConfig", seen(), ("logits",), axes={0: {0: "batch"}})
hub("mobilevit_hf", "MobileViTModel", "MobileViTConfig", seen(128), image_size=128)
hub("yolos", "YolosForObjectDetection", "YolosConfig", seen(), ("logits", "pred_boxes"), **(SEEN | {"image_size": [64, 64], "num_detection_tokens": 10}))
hub("dpt", "DPTForDepthEstimation", "DPTConfig", seen(96), ("predicted_depth",), hidden_size=128, num_hidden_layers=4, num_attention_heads=4, intermediate_size=256, image_size=96, backbone_out_indices=[0, 1, 2, 3], neck_hidden_sizes=[32, 32, 64, 64], fusion_hidden_size=32)
hub("swin2sr", "Swin2SRForImageSuperResolution", "Swin2SRConfig", seen(32), ("reconstruction",), image_size=32, embed_dim=60, depths=[2, 2], num_heads=[6, 6])
hub("glpn", "GLPNForDepthEstimation", "GLPNConfig", seen(), ("predicted_depth",))
hub("poolformer_hf", "PoolFormerModel", "PoolFormerConfig", seen())
hub("regnet_hf", "RegNetModel", "RegNetConfig", seen(), depths=[1, 1, 2, 1], hidden_sizes=[32, 64, 96, 128])
hub("informer", "TimesformerModel", "TimesformerConfig", lambda: {"pixel_values": torch.randn(1, 4, 3, 32, 32)}, **(SEEN | {"image_size": 32, "num_frames": 4}))

# --- torchaudio ------------------------------------------------------------------------------------------------------


def audio(name, build, **kwargs):
    add(name, "torchaudio", lambda: lively(name, *build()), **kwargs)


def conformer():
    import torchaudio

    model = torchaudio.models.Conformer(80, 4, 128, 2, 31)
    return First(model), [torch.randn(1, 100, 80), torch.tensor([100])]


class First(torch.nn.Module):
    """The first result of a model."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, *arguments):
        return self.model(*arguments)[0]


def of_torchaudio(make, *arguments):
    def build():
        import torchaudio

        return make(torchaudio), [argument() for argument in arguments]

    return build


audio("conformer", conformer)
audio("conv_tasnet", of_torchaudio(lambda t: t.models.ConvTasNet(2, enc_num_feats=64, msk_num_feats=32, msk_num_hidden_feats=64, msk_num_layers=3, msk_num_stacks=2), lambda: torch.randn(1, 1, 4000)))
audio("deepspeech", of_torchaudio(lambda t: t.models.DeepSpeech(40, 128), lambda: torch.randn(1, 1, 50, 40)))
audio("wav2letter", of_torchaudio(lambda t: t.models.Wav2Letter(input_type="mfcc", num_features=40), lambda: torch.randn(1, 40, 100)))
audio("wav2vec2_audio", of_torchaudio(lambda t: First(t.models.wav2vec2_model("layer_norm", None, True, 128, 0.0, 16, 4, 2, 4, 0.0, 256, 0.0, 0.0, True, 0.0, 29)), lambda: torch.randn(1, 4000)), opset=14)
audio("mel_spectrogram", of_torchaudio(lambda t: t.transforms.MelSpectrogram(16000, n_fft=400, n_mels=40), lambda: torch.randn(1, 8000)), opset=17, fast=True)
audio("hdemucs", of_torchaudio(lambda t: t.models.HDemucs(["a", "b"], channels=8, depth=4), lambda: torch.randn(1, 2, 44100)), opset=17)
# The other exporter names an axis that there is not, which ONNX Runtime refuses, too.
audio("wavernn", of_torchaudio(lambda t: t.models.WaveRNN([2, 2, 3], 32, 12, n_res_block=2, n_rnn=64, n_fc=64, n_freq=20, n_hidden=32, n_output=32), lambda: torch.randn(1, 1, 12 * 6), lambda: torch.randn(1, 1, 20, 10)), exporters=("dynamo",))
audio("emformer", of_torchaudio(lambda t: First(t.models.Emformer(64, 4, 128, 2, 8, right_context_length=2)), lambda: torch.randn(1, 18, 64), lambda: torch.tensor([16])))
audio("tacotron2_encoder", of_torchaudio(lambda t: Encoder(t.models.Tacotron2(n_symbol=40)), lambda: tokens(20, 40), lambda: torch.tensor([20])))


class Encoder(torch.nn.Module):
    """Tacotron's encoder: the decoder runs until it says that it is done, which has no end here."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, ids, lengths):
        embedded = self.model.embedding(ids).transpose(1, 2)
        return self.model.encoder(embedded, lengths)
