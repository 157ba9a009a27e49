from nereid.pb import kserve_pb2 as _kserve_pb2
from nereid.pb import model_config_pb2 as _model_config_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class ReadStateRequest(_message.Message):
    __slots__ = ("mesh", "record", "files")
    MESH_FIELD_NUMBER: _ClassVar[int]
    RECORD_FIELD_NUMBER: _ClassVar[int]
    FILES_FIELD_NUMBER: _ClassVar[int]
    mesh: str
    record: str
    files: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, mesh: _Optional[str] = ..., record: _Optional[str] = ..., files: _Optional[_Iterable[str]] = ...) -> None: ...

class ReadStateResponse(_message.Message):
    __slots__ = ("records", "files")
    class RecordsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: bytes
        def __init__(self, key: _Optional[str] = ..., value: _Optional[bytes] = ...) -> None: ...
    class FilesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: bytes
        def __init__(self, key: _Optional[str] = ..., value: _Optional[bytes] = ...) -> None: ...
    RECORDS_FIELD_NUMBER: _ClassVar[int]
    FILES_FIELD_NUMBER: _ClassVar[int]
    records: _containers.ScalarMap[str, bytes]
    files: _containers.ScalarMap[str, bytes]
    def __init__(self, records: _Optional[_Mapping[str, bytes]] = ..., files: _Optional[_Mapping[str, bytes]] = ...) -> None: ...

class WriteStateRequest(_message.Message):
    __slots__ = ("mesh", "record", "expected", "content", "files", "damaged")
    class FilesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: bytes
        def __init__(self, key: _Optional[str] = ..., value: _Optional[bytes] = ...) -> None: ...
    MESH_FIELD_NUMBER: _ClassVar[int]
    RECORD_FIELD_NUMBER: _ClassVar[int]
    EXPECTED_FIELD_NUMBER: _ClassVar[int]
    CONTENT_FIELD_NUMBER: _ClassVar[int]
    FILES_FIELD_NUMBER: _ClassVar[int]
    DAMAGED_FIELD_NUMBER: _ClassVar[int]
    mesh: str
    record: str
    expected: bytes
    content: bytes
    files: _containers.ScalarMap[str, bytes]
    damaged: bool
    def __init__(self, mesh: _Optional[str] = ..., record: _Optional[str] = ..., expected: _Optional[bytes] = ..., content: _Optional[bytes] = ..., files: _Optional[_Mapping[str, bytes]] = ..., damaged: bool = ...) -> None: ...

class WriteStateResponse(_message.Message):
    __slots__ = ("conflict", "aside")
    CONFLICT_FIELD_NUMBER: _ClassVar[int]
    ASIDE_FIELD_NUMBER: _ClassVar[int]
    conflict: bool
    aside: str
    def __init__(self, conflict: bool = ..., aside: _Optional[str] = ...) -> None: ...

class PeerState(_message.Message):
    __slots__ = ("name", "incarnation", "epoch", "leaving", "models", "compositions", "executors", "links", "number", "takeovers", "traffic")
    class TakeoversEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: int
        value: int
        def __init__(self, key: _Optional[int] = ..., value: _Optional[int] = ...) -> None: ...
    NAME_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    LEAVING_FIELD_NUMBER: _ClassVar[int]
    MODELS_FIELD_NUMBER: _ClassVar[int]
    COMPOSITIONS_FIELD_NUMBER: _ClassVar[int]
    EXECUTORS_FIELD_NUMBER: _ClassVar[int]
    LINKS_FIELD_NUMBER: _ClassVar[int]
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    TAKEOVERS_FIELD_NUMBER: _ClassVar[int]
    TRAFFIC_FIELD_NUMBER: _ClassVar[int]
    name: str
    incarnation: int
    epoch: int
    leaving: bool
    models: _containers.RepeatedScalarFieldContainer[str]
    compositions: _containers.RepeatedCompositeFieldContainer[Composition]
    executors: int
    links: int
    number: int
    takeovers: _containers.ScalarMap[int, int]
    traffic: _containers.RepeatedCompositeFieldContainer[TrafficSetting]
    def __init__(self, name: _Optional[str] = ..., incarnation: _Optional[int] = ..., epoch: _Optional[int] = ..., leaving: bool = ..., models: _Optional[_Iterable[str]] = ..., compositions: _Optional[_Iterable[_Union[Composition, _Mapping]]] = ..., executors: _Optional[int] = ..., links: _Optional[int] = ..., number: _Optional[int] = ..., takeovers: _Optional[_Mapping[int, int]] = ..., traffic: _Optional[_Iterable[_Union[TrafficSetting, _Mapping]]] = ...) -> None: ...

class Composition(_message.Message):
    __slots__ = ("ensemble", "models")
    ENSEMBLE_FIELD_NUMBER: _ClassVar[int]
    MODELS_FIELD_NUMBER: _ClassVar[int]
    ensemble: str
    models: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, ensemble: _Optional[str] = ..., models: _Optional[_Iterable[str]] = ...) -> None: ...

class MetricsRequest(_message.Message):
    __slots__ = ("without_cpu", "without_gpu", "with_exemplars", "models", "without_histograms")
    WITHOUT_CPU_FIELD_NUMBER: _ClassVar[int]
    WITHOUT_GPU_FIELD_NUMBER: _ClassVar[int]
    WITH_EXEMPLARS_FIELD_NUMBER: _ClassVar[int]
    MODELS_FIELD_NUMBER: _ClassVar[int]
    WITHOUT_HISTOGRAMS_FIELD_NUMBER: _ClassVar[int]
    without_cpu: bool
    without_gpu: bool
    with_exemplars: bool
    models: _containers.RepeatedScalarFieldContainer[str]
    without_histograms: bool
    def __init__(self, without_cpu: bool = ..., without_gpu: bool = ..., with_exemplars: bool = ..., models: _Optional[_Iterable[str]] = ..., without_histograms: bool = ...) -> None: ...

class MetricsResponse(_message.Message):
    __slots__ = ("exposition",)
    EXPOSITION_FIELD_NUMBER: _ClassVar[int]
    exposition: bytes
    def __init__(self, exposition: _Optional[bytes] = ...) -> None: ...

class CountsRequest(_message.Message):
    __slots__ = ("seen", "kept")
    SEEN_FIELD_NUMBER: _ClassVar[int]
    KEPT_FIELD_NUMBER: _ClassVar[int]
    seen: _containers.RepeatedCompositeFieldContainer[CountsSeen]
    kept: _containers.RepeatedCompositeFieldContainer[VersionCounts]
    def __init__(self, seen: _Optional[_Iterable[_Union[CountsSeen, _Mapping]]] = ..., kept: _Optional[_Iterable[_Union[VersionCounts, _Mapping]]] = ...) -> None: ...

class CountsSeen(_message.Message):
    __slots__ = ("scheduler", "change")
    SCHEDULER_FIELD_NUMBER: _ClassVar[int]
    CHANGE_FIELD_NUMBER: _ClassVar[int]
    scheduler: int
    change: int
    def __init__(self, scheduler: _Optional[int] = ..., change: _Optional[int] = ...) -> None: ...

class CountsResponse(_message.Message):
    __slots__ = ("schedulers",)
    SCHEDULERS_FIELD_NUMBER: _ClassVar[int]
    schedulers: _containers.RepeatedCompositeFieldContainer[SchedulerCounts]
    def __init__(self, schedulers: _Optional[_Iterable[_Union[SchedulerCounts, _Mapping]]] = ...) -> None: ...

class SchedulerCounts(_message.Message):
    __slots__ = ("scheduler", "change", "held", "changed")
    SCHEDULER_FIELD_NUMBER: _ClassVar[int]
    CHANGE_FIELD_NUMBER: _ClassVar[int]
    HELD_FIELD_NUMBER: _ClassVar[int]
    CHANGED_FIELD_NUMBER: _ClassVar[int]
    scheduler: int
    change: int
    held: _containers.RepeatedCompositeFieldContainer[HeldCounts]
    changed: _containers.RepeatedCompositeFieldContainer[VersionCounts]
    def __init__(self, scheduler: _Optional[int] = ..., change: _Optional[int] = ..., held: _Optional[_Iterable[_Union[HeldCounts, _Mapping]]] = ..., changed: _Optional[_Iterable[_Union[VersionCounts, _Mapping]]] = ...) -> None: ...

class HeldCounts(_message.Message):
    __slots__ = ("id", "number")
    ID_FIELD_NUMBER: _ClassVar[int]
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    id: int
    number: int
    def __init__(self, id: _Optional[int] = ..., number: _Optional[int] = ...) -> None: ...

class VersionCounts(_message.Message):
    __slots__ = ("id", "model", "version", "loaded_ns", "continues", "number", "statistics", "exposition", "includes")
    ID_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    LOADED_NS_FIELD_NUMBER: _ClassVar[int]
    CONTINUES_FIELD_NUMBER: _ClassVar[int]
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    STATISTICS_FIELD_NUMBER: _ClassVar[int]
    EXPOSITION_FIELD_NUMBER: _ClassVar[int]
    INCLUDES_FIELD_NUMBER: _ClassVar[int]
    id: int
    model: str
    version: str
    loaded_ns: int
    continues: bool
    number: int
    statistics: _kserve_pb2.ModelStatistics
    exposition: bytes
    includes: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, id: _Optional[int] = ..., model: _Optional[str] = ..., version: _Optional[str] = ..., loaded_ns: _Optional[int] = ..., continues: bool = ..., number: _Optional[int] = ..., statistics: _Optional[_Union[_kserve_pb2.ModelStatistics, _Mapping]] = ..., exposition: _Optional[bytes] = ..., includes: _Optional[_Iterable[int]] = ...) -> None: ...

class ModelTextRequest(_message.Message):
    __slots__ = ("name", "version", "known_digest")
    NAME_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    KNOWN_DIGEST_FIELD_NUMBER: _ClassVar[int]
    name: str
    version: str
    known_digest: bytes
    def __init__(self, name: _Optional[str] = ..., version: _Optional[str] = ..., known_digest: _Optional[bytes] = ...) -> None: ...

class ModelTextResponse(_message.Message):
    __slots__ = ("names", "version", "config", "digest", "files", "loaded_s")
    class FilesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: bytes
        def __init__(self, key: _Optional[str] = ..., value: _Optional[bytes] = ...) -> None: ...
    NAMES_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    CONFIG_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    FILES_FIELD_NUMBER: _ClassVar[int]
    LOADED_S_FIELD_NUMBER: _ClassVar[int]
    names: _containers.RepeatedScalarFieldContainer[str]
    version: str
    config: _model_config_pb2.ModelConfig
    digest: bytes
    files: _containers.ScalarMap[str, bytes]
    loaded_s: int
    def __init__(self, names: _Optional[_Iterable[str]] = ..., version: _Optional[str] = ..., config: _Optional[_Union[_model_config_pb2.ModelConfig, _Mapping]] = ..., digest: _Optional[bytes] = ..., files: _Optional[_Mapping[str, bytes]] = ..., loaded_s: _Optional[int] = ...) -> None: ...

class Traffic(_message.Message):
    __slots__ = ("weights", "by")
    class WeightsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: int
        value: int
        def __init__(self, key: _Optional[int] = ..., value: _Optional[int] = ...) -> None: ...
    WEIGHTS_FIELD_NUMBER: _ClassVar[int]
    BY_FIELD_NUMBER: _ClassVar[int]
    weights: _containers.ScalarMap[int, int]
    by: str
    def __init__(self, weights: _Optional[_Mapping[int, int]] = ..., by: _Optional[str] = ...) -> None: ...

class ModelTrafficRequest(_message.Message):
    __slots__ = ("model", "traffic", "clear", "principal", "shadow", "clear_shadow", "counts")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    TRAFFIC_FIELD_NUMBER: _ClassVar[int]
    CLEAR_FIELD_NUMBER: _ClassVar[int]
    PRINCIPAL_FIELD_NUMBER: _ClassVar[int]
    SHADOW_FIELD_NUMBER: _ClassVar[int]
    CLEAR_SHADOW_FIELD_NUMBER: _ClassVar[int]
    COUNTS_FIELD_NUMBER: _ClassVar[int]
    model: str
    traffic: Traffic
    clear: bool
    principal: str
    shadow: str
    clear_shadow: bool
    counts: ShadowCounts
    def __init__(self, model: _Optional[str] = ..., traffic: _Optional[_Union[Traffic, _Mapping]] = ..., clear: bool = ..., principal: _Optional[str] = ..., shadow: _Optional[str] = ..., clear_shadow: bool = ..., counts: _Optional[_Union[ShadowCounts, _Mapping]] = ...) -> None: ...

class ShadowCounts(_message.Message):
    __slots__ = ("gateway", "shadow", "compared", "differing")
    GATEWAY_FIELD_NUMBER: _ClassVar[int]
    SHADOW_FIELD_NUMBER: _ClassVar[int]
    COMPARED_FIELD_NUMBER: _ClassVar[int]
    DIFFERING_FIELD_NUMBER: _ClassVar[int]
    gateway: int
    shadow: str
    compared: int
    differing: int
    def __init__(self, gateway: _Optional[int] = ..., shadow: _Optional[str] = ..., compared: _Optional[int] = ..., differing: _Optional[int] = ...) -> None: ...

class ModelTrafficResponse(_message.Message):
    __slots__ = ("traffic", "source", "shadow", "compared", "differing", "warnings", "shadow_source", "shadow_problem")
    TRAFFIC_FIELD_NUMBER: _ClassVar[int]
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    SHADOW_FIELD_NUMBER: _ClassVar[int]
    COMPARED_FIELD_NUMBER: _ClassVar[int]
    DIFFERING_FIELD_NUMBER: _ClassVar[int]
    WARNINGS_FIELD_NUMBER: _ClassVar[int]
    SHADOW_SOURCE_FIELD_NUMBER: _ClassVar[int]
    SHADOW_PROBLEM_FIELD_NUMBER: _ClassVar[int]
    traffic: Traffic
    source: str
    shadow: str
    compared: int
    differing: int
    warnings: _containers.RepeatedScalarFieldContainer[str]
    shadow_source: str
    shadow_problem: str
    def __init__(self, traffic: _Optional[_Union[Traffic, _Mapping]] = ..., source: _Optional[str] = ..., shadow: _Optional[str] = ..., compared: _Optional[int] = ..., differing: _Optional[int] = ..., warnings: _Optional[_Iterable[str]] = ..., shadow_source: _Optional[str] = ..., shadow_problem: _Optional[str] = ...) -> None: ...

class TrafficSetting(_message.Message):
    __slots__ = ("model", "traffic", "set_ns", "rollout", "shadow")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    TRAFFIC_FIELD_NUMBER: _ClassVar[int]
    SET_NS_FIELD_NUMBER: _ClassVar[int]
    ROLLOUT_FIELD_NUMBER: _ClassVar[int]
    SHADOW_FIELD_NUMBER: _ClassVar[int]
    model: str
    traffic: Traffic
    set_ns: int
    rollout: str
    shadow: str
    def __init__(self, model: _Optional[str] = ..., traffic: _Optional[_Union[Traffic, _Mapping]] = ..., set_ns: _Optional[int] = ..., rollout: _Optional[str] = ..., shadow: _Optional[str] = ...) -> None: ...

class ModelRolloutRequest(_message.Message):
    __slots__ = ("model", "action", "plan", "principal")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    ACTION_FIELD_NUMBER: _ClassVar[int]
    PLAN_FIELD_NUMBER: _ClassVar[int]
    PRINCIPAL_FIELD_NUMBER: _ClassVar[int]
    model: str
    action: str
    plan: str
    principal: str
    def __init__(self, model: _Optional[str] = ..., action: _Optional[str] = ..., plan: _Optional[str] = ..., principal: _Optional[str] = ...) -> None: ...

class ModelRolloutResponse(_message.Message):
    __slots__ = ("document",)
    DOCUMENT_FIELD_NUMBER: _ClassVar[int]
    document: str
    def __init__(self, document: _Optional[str] = ...) -> None: ...

class FactsRequest(_message.Message):
    __slots__ = ("models", "with_loads", "events")
    MODELS_FIELD_NUMBER: _ClassVar[int]
    WITH_LOADS_FIELD_NUMBER: _ClassVar[int]
    EVENTS_FIELD_NUMBER: _ClassVar[int]
    models: _containers.RepeatedScalarFieldContainer[str]
    with_loads: bool
    events: int
    def __init__(self, models: _Optional[_Iterable[str]] = ..., with_loads: bool = ..., events: _Optional[int] = ...) -> None: ...

class FactsResponse(_message.Message):
    __slots__ = ("executors", "schedulers", "configs", "batches", "loads", "events")
    EXECUTORS_FIELD_NUMBER: _ClassVar[int]
    SCHEDULERS_FIELD_NUMBER: _ClassVar[int]
    CONFIGS_FIELD_NUMBER: _ClassVar[int]
    BATCHES_FIELD_NUMBER: _ClassVar[int]
    LOADS_FIELD_NUMBER: _ClassVar[int]
    EVENTS_FIELD_NUMBER: _ClassVar[int]
    executors: _containers.RepeatedCompositeFieldContainer[ExecutorFacts]
    schedulers: _containers.RepeatedCompositeFieldContainer[SchedulerFacts]
    configs: _containers.RepeatedCompositeFieldContainer[DeclaredConfig]
    batches: _containers.RepeatedCompositeFieldContainer[ExecutingBatch]
    loads: _containers.RepeatedCompositeFieldContainer[VersionLoad]
    events: _containers.RepeatedCompositeFieldContainer[MeshEvent]
    def __init__(self, executors: _Optional[_Iterable[_Union[ExecutorFacts, _Mapping]]] = ..., schedulers: _Optional[_Iterable[_Union[SchedulerFacts, _Mapping]]] = ..., configs: _Optional[_Iterable[_Union[DeclaredConfig, _Mapping]]] = ..., batches: _Optional[_Iterable[_Union[ExecutingBatch, _Mapping]]] = ..., loads: _Optional[_Iterable[_Union[VersionLoad, _Mapping]]] = ..., events: _Optional[_Iterable[_Union[MeshEvent, _Mapping]]] = ...) -> None: ...

class MeshEvent(_message.Message):
    __slots__ = ("scheduler", "number", "time_s", "duration_us", "what", "subject", "detail", "model", "cause", "principal")
    SCHEDULER_FIELD_NUMBER: _ClassVar[int]
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    TIME_S_FIELD_NUMBER: _ClassVar[int]
    DURATION_US_FIELD_NUMBER: _ClassVar[int]
    WHAT_FIELD_NUMBER: _ClassVar[int]
    SUBJECT_FIELD_NUMBER: _ClassVar[int]
    DETAIL_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    CAUSE_FIELD_NUMBER: _ClassVar[int]
    PRINCIPAL_FIELD_NUMBER: _ClassVar[int]
    scheduler: str
    number: int
    time_s: float
    duration_us: int
    what: str
    subject: str
    detail: str
    model: str
    cause: str
    principal: str
    def __init__(self, scheduler: _Optional[str] = ..., number: _Optional[int] = ..., time_s: _Optional[float] = ..., duration_us: _Optional[int] = ..., what: _Optional[str] = ..., subject: _Optional[str] = ..., detail: _Optional[str] = ..., model: _Optional[str] = ..., cause: _Optional[str] = ..., principal: _Optional[str] = ...) -> None: ...

class VersionLoad(_message.Message):
    __slots__ = ("model", "version", "pending", "requests", "failures", "request_us", "queue_us", "compute_input_us", "compute_infer_us", "compute_output_us", "last_30", "last_5", "minutes", "steps")
    class Minutes(_message.Message):
        __slots__ = ("seconds", "requests", "failures", "refused", "p50_us", "p95_us", "p99_us", "age")
        SECONDS_FIELD_NUMBER: _ClassVar[int]
        REQUESTS_FIELD_NUMBER: _ClassVar[int]
        FAILURES_FIELD_NUMBER: _ClassVar[int]
        REFUSED_FIELD_NUMBER: _ClassVar[int]
        P50_US_FIELD_NUMBER: _ClassVar[int]
        P95_US_FIELD_NUMBER: _ClassVar[int]
        P99_US_FIELD_NUMBER: _ClassVar[int]
        AGE_FIELD_NUMBER: _ClassVar[int]
        seconds: float
        requests: int
        failures: int
        refused: int
        p50_us: float
        p95_us: float
        p99_us: float
        age: int
        def __init__(self, seconds: _Optional[float] = ..., requests: _Optional[int] = ..., failures: _Optional[int] = ..., refused: _Optional[int] = ..., p50_us: _Optional[float] = ..., p95_us: _Optional[float] = ..., p99_us: _Optional[float] = ..., age: _Optional[int] = ...) -> None: ...
    MODEL_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    PENDING_FIELD_NUMBER: _ClassVar[int]
    REQUESTS_FIELD_NUMBER: _ClassVar[int]
    FAILURES_FIELD_NUMBER: _ClassVar[int]
    REQUEST_US_FIELD_NUMBER: _ClassVar[int]
    QUEUE_US_FIELD_NUMBER: _ClassVar[int]
    COMPUTE_INPUT_US_FIELD_NUMBER: _ClassVar[int]
    COMPUTE_INFER_US_FIELD_NUMBER: _ClassVar[int]
    COMPUTE_OUTPUT_US_FIELD_NUMBER: _ClassVar[int]
    LAST_30_FIELD_NUMBER: _ClassVar[int]
    LAST_5_FIELD_NUMBER: _ClassVar[int]
    MINUTES_FIELD_NUMBER: _ClassVar[int]
    STEPS_FIELD_NUMBER: _ClassVar[int]
    model: str
    version: int
    pending: int
    requests: int
    failures: int
    request_us: int
    queue_us: int
    compute_input_us: int
    compute_infer_us: int
    compute_output_us: int
    last_30: VersionLoad.Minutes
    last_5: VersionLoad.Minutes
    minutes: _containers.RepeatedCompositeFieldContainer[VersionLoad.Minutes]
    steps: _containers.RepeatedCompositeFieldContainer[StepLoad]
    def __init__(self, model: _Optional[str] = ..., version: _Optional[int] = ..., pending: _Optional[int] = ..., requests: _Optional[int] = ..., failures: _Optional[int] = ..., request_us: _Optional[int] = ..., queue_us: _Optional[int] = ..., compute_input_us: _Optional[int] = ..., compute_infer_us: _Optional[int] = ..., compute_output_us: _Optional[int] = ..., last_30: _Optional[_Union[VersionLoad.Minutes, _Mapping]] = ..., last_5: _Optional[_Union[VersionLoad.Minutes, _Mapping]] = ..., minutes: _Optional[_Iterable[_Union[VersionLoad.Minutes, _Mapping]]] = ..., steps: _Optional[_Iterable[_Union[StepLoad, _Mapping]]] = ...) -> None: ...

class StepLoad(_message.Message):
    __slots__ = ("index", "last_30", "mean_us")
    INDEX_FIELD_NUMBER: _ClassVar[int]
    LAST_30_FIELD_NUMBER: _ClassVar[int]
    MEAN_US_FIELD_NUMBER: _ClassVar[int]
    index: int
    last_30: VersionLoad.Minutes
    mean_us: float
    def __init__(self, index: _Optional[int] = ..., last_30: _Optional[_Union[VersionLoad.Minutes, _Mapping]] = ..., mean_us: _Optional[float] = ...) -> None: ...

class ExecutingBatch(_message.Message):
    __slots__ = ("model", "version", "instance", "reason", "rows", "age_us", "members")
    class Member(_message.Message):
        __slots__ = ("request_id", "rows", "queue_us")
        REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
        ROWS_FIELD_NUMBER: _ClassVar[int]
        QUEUE_US_FIELD_NUMBER: _ClassVar[int]
        request_id: str
        rows: int
        queue_us: int
        def __init__(self, request_id: _Optional[str] = ..., rows: _Optional[int] = ..., queue_us: _Optional[int] = ...) -> None: ...
    MODEL_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    INSTANCE_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    AGE_US_FIELD_NUMBER: _ClassVar[int]
    MEMBERS_FIELD_NUMBER: _ClassVar[int]
    model: str
    version: int
    instance: str
    reason: str
    rows: int
    age_us: int
    members: _containers.RepeatedCompositeFieldContainer[ExecutingBatch.Member]
    def __init__(self, model: _Optional[str] = ..., version: _Optional[int] = ..., instance: _Optional[str] = ..., reason: _Optional[str] = ..., rows: _Optional[int] = ..., age_us: _Optional[int] = ..., members: _Optional[_Iterable[_Union[ExecutingBatch.Member, _Mapping]]] = ...) -> None: ...

class ExecutorFacts(_message.Message):
    __slots__ = ("name", "host", "devices", "backends", "usage", "hosted", "host_name", "sandbox")
    NAME_FIELD_NUMBER: _ClassVar[int]
    HOST_FIELD_NUMBER: _ClassVar[int]
    DEVICES_FIELD_NUMBER: _ClassVar[int]
    BACKENDS_FIELD_NUMBER: _ClassVar[int]
    USAGE_FIELD_NUMBER: _ClassVar[int]
    HOSTED_FIELD_NUMBER: _ClassVar[int]
    HOST_NAME_FIELD_NUMBER: _ClassVar[int]
    SANDBOX_FIELD_NUMBER: _ClassVar[int]
    name: str
    host: str
    devices: _containers.RepeatedCompositeFieldContainer[Device]
    backends: _containers.RepeatedScalarFieldContainer[str]
    usage: DeviceUsage
    hosted: _containers.RepeatedCompositeFieldContainer[HostedModel]
    host_name: str
    sandbox: str
    def __init__(self, name: _Optional[str] = ..., host: _Optional[str] = ..., devices: _Optional[_Iterable[_Union[Device, _Mapping]]] = ..., backends: _Optional[_Iterable[str]] = ..., usage: _Optional[_Union[DeviceUsage, _Mapping]] = ..., hosted: _Optional[_Iterable[_Union[HostedModel, _Mapping]]] = ..., host_name: _Optional[str] = ..., sandbox: _Optional[str] = ...) -> None: ...

class HostedModel(_message.Message):
    __slots__ = ("model", "version", "instances", "busy", "memory_bytes")
    class MemoryBytesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    MODEL_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    INSTANCES_FIELD_NUMBER: _ClassVar[int]
    BUSY_FIELD_NUMBER: _ClassVar[int]
    MEMORY_BYTES_FIELD_NUMBER: _ClassVar[int]
    model: str
    version: int
    instances: int
    busy: int
    memory_bytes: _containers.ScalarMap[str, int]
    def __init__(self, model: _Optional[str] = ..., version: _Optional[int] = ..., instances: _Optional[int] = ..., busy: _Optional[int] = ..., memory_bytes: _Optional[_Mapping[str, int]] = ...) -> None: ...

class SchedulerFacts(_message.Message):
    __slots__ = ("name", "epoch", "gateways", "owned", "models", "reachable", "host_name", "events")
    NAME_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    GATEWAYS_FIELD_NUMBER: _ClassVar[int]
    OWNED_FIELD_NUMBER: _ClassVar[int]
    MODELS_FIELD_NUMBER: _ClassVar[int]
    REACHABLE_FIELD_NUMBER: _ClassVar[int]
    HOST_NAME_FIELD_NUMBER: _ClassVar[int]
    EVENTS_FIELD_NUMBER: _ClassVar[int]
    name: str
    epoch: int
    gateways: int
    owned: _containers.RepeatedScalarFieldContainer[str]
    models: int
    reachable: bool
    host_name: str
    events: int
    def __init__(self, name: _Optional[str] = ..., epoch: _Optional[int] = ..., gateways: _Optional[int] = ..., owned: _Optional[_Iterable[str]] = ..., models: _Optional[int] = ..., reachable: bool = ..., host_name: _Optional[str] = ..., events: _Optional[int] = ...) -> None: ...

class DeclaredConfig(_message.Message):
    __slots__ = ("model", "version", "config")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    CONFIG_FIELD_NUMBER: _ClassVar[int]
    model: str
    version: int
    config: _model_config_pb2.ModelConfig
    def __init__(self, model: _Optional[str] = ..., version: _Optional[int] = ..., config: _Optional[_Union[_model_config_pb2.ModelConfig, _Mapping]] = ...) -> None: ...

class DrainExecutorRequest(_message.Message):
    __slots__ = ("name", "allow_last", "authorized")
    NAME_FIELD_NUMBER: _ClassVar[int]
    ALLOW_LAST_FIELD_NUMBER: _ClassVar[int]
    AUTHORIZED_FIELD_NUMBER: _ClassVar[int]
    name: str
    allow_last: bool
    authorized: bool
    def __init__(self, name: _Optional[str] = ..., allow_last: bool = ..., authorized: bool = ...) -> None: ...

class DrainExecutorResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class TimelineRequest(_message.Message):
    __slots__ = ("last_ns", "with_executors")
    LAST_NS_FIELD_NUMBER: _ClassVar[int]
    WITH_EXECUTORS_FIELD_NUMBER: _ClassVar[int]
    last_ns: int
    with_executors: bool
    def __init__(self, last_ns: _Optional[int] = ..., with_executors: bool = ...) -> None: ...

class TimelineFile(_message.Message):
    __slots__ = ("frames",)
    FRAMES_FIELD_NUMBER: _ClassVar[int]
    frames: _containers.RepeatedCompositeFieldContainer[TimelineFrame]
    def __init__(self, frames: _Optional[_Iterable[_Union[TimelineFrame, _Mapping]]] = ...) -> None: ...

class TimelineFrame(_message.Message):
    __slots__ = ("service", "records", "missing", "epoch_ns")
    SERVICE_FIELD_NUMBER: _ClassVar[int]
    RECORDS_FIELD_NUMBER: _ClassVar[int]
    MISSING_FIELD_NUMBER: _ClassVar[int]
    EPOCH_NS_FIELD_NUMBER: _ClassVar[int]
    service: TimelineService
    records: bytes
    missing: str
    epoch_ns: int
    def __init__(self, service: _Optional[_Union[TimelineService, _Mapping]] = ..., records: _Optional[bytes] = ..., missing: _Optional[str] = ..., epoch_ns: _Optional[int] = ...) -> None: ...

class TimelineService(_message.Message):
    __slots__ = ("kind", "name", "offset_ns", "error_ns", "from_ns", "to_ns", "clock", "now_ns")
    KIND_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    OFFSET_NS_FIELD_NUMBER: _ClassVar[int]
    ERROR_NS_FIELD_NUMBER: _ClassVar[int]
    FROM_NS_FIELD_NUMBER: _ClassVar[int]
    TO_NS_FIELD_NUMBER: _ClassVar[int]
    CLOCK_FIELD_NUMBER: _ClassVar[int]
    NOW_NS_FIELD_NUMBER: _ClassVar[int]
    kind: str
    name: str
    offset_ns: int
    error_ns: int
    from_ns: int
    to_ns: int
    clock: str
    now_ns: int
    def __init__(self, kind: _Optional[str] = ..., name: _Optional[str] = ..., offset_ns: _Optional[int] = ..., error_ns: _Optional[int] = ..., from_ns: _Optional[int] = ..., to_ns: _Optional[int] = ..., clock: _Optional[str] = ..., now_ns: _Optional[int] = ...) -> None: ...

class TimelineRecords(_message.Message):
    __slots__ = ("kind", "count", "strings", "columns", "member_columns")
    KIND_FIELD_NUMBER: _ClassVar[int]
    COUNT_FIELD_NUMBER: _ClassVar[int]
    STRINGS_FIELD_NUMBER: _ClassVar[int]
    COLUMNS_FIELD_NUMBER: _ClassVar[int]
    MEMBER_COLUMNS_FIELD_NUMBER: _ClassVar[int]
    kind: int
    count: int
    strings: _containers.RepeatedScalarFieldContainer[str]
    columns: _containers.RepeatedCompositeFieldContainer[TimelineColumn]
    member_columns: _containers.RepeatedCompositeFieldContainer[TimelineColumn]
    def __init__(self, kind: _Optional[int] = ..., count: _Optional[int] = ..., strings: _Optional[_Iterable[str]] = ..., columns: _Optional[_Iterable[_Union[TimelineColumn, _Mapping]]] = ..., member_columns: _Optional[_Iterable[_Union[TimelineColumn, _Mapping]]] = ...) -> None: ...

class TimelineColumn(_message.Message):
    __slots__ = ("values",)
    VALUES_FIELD_NUMBER: _ClassVar[int]
    values: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, values: _Optional[_Iterable[int]] = ...) -> None: ...

class CacheFrame(_message.Message):
    __slots__ = ("lookups", "stores")
    LOOKUPS_FIELD_NUMBER: _ClassVar[int]
    STORES_FIELD_NUMBER: _ClassVar[int]
    lookups: _containers.RepeatedCompositeFieldContainer[CacheLookup]
    stores: _containers.RepeatedCompositeFieldContainer[CacheStore]
    def __init__(self, lookups: _Optional[_Iterable[_Union[CacheLookup, _Mapping]]] = ..., stores: _Optional[_Iterable[_Union[CacheStore, _Mapping]]] = ...) -> None: ...

class CacheLookup(_message.Message):
    __slots__ = ("id", "key", "trace_context")
    ID_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    TRACE_CONTEXT_FIELD_NUMBER: _ClassVar[int]
    id: int
    key: bytes
    trace_context: bytes
    def __init__(self, id: _Optional[int] = ..., key: _Optional[bytes] = ..., trace_context: _Optional[bytes] = ...) -> None: ...

class CacheStore(_message.Message):
    __slots__ = ("key", "value", "time_to_live_ms", "trace_context")
    KEY_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    TIME_TO_LIVE_MS_FIELD_NUMBER: _ClassVar[int]
    TRACE_CONTEXT_FIELD_NUMBER: _ClassVar[int]
    key: bytes
    value: bytes
    time_to_live_ms: int
    trace_context: bytes
    def __init__(self, key: _Optional[bytes] = ..., value: _Optional[bytes] = ..., time_to_live_ms: _Optional[int] = ..., trace_context: _Optional[bytes] = ...) -> None: ...

class CachedResponse(_message.Message):
    __slots__ = ("head", "payloads")
    HEAD_FIELD_NUMBER: _ClassVar[int]
    PAYLOADS_FIELD_NUMBER: _ClassVar[int]
    head: bytes
    payloads: _containers.RepeatedScalarFieldContainer[bytes]
    def __init__(self, head: _Optional[bytes] = ..., payloads: _Optional[_Iterable[bytes]] = ...) -> None: ...

class LookupResultFrame(_message.Message):
    __slots__ = ("results", "usage")
    RESULTS_FIELD_NUMBER: _ClassVar[int]
    USAGE_FIELD_NUMBER: _ClassVar[int]
    results: _containers.RepeatedCompositeFieldContainer[LookupResult]
    usage: CacheUsage
    def __init__(self, results: _Optional[_Iterable[_Union[LookupResult, _Mapping]]] = ..., usage: _Optional[_Union[CacheUsage, _Mapping]] = ...) -> None: ...

class LookupResult(_message.Message):
    __slots__ = ("id", "value")
    ID_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    id: int
    value: bytes
    def __init__(self, id: _Optional[int] = ..., value: _Optional[bytes] = ...) -> None: ...

class CacheUsage(_message.Message):
    __slots__ = ("entries", "used_bytes", "capacity_bytes", "lookups", "hits", "evictions", "stores", "failures", "lookup_ns", "store_ns")
    ENTRIES_FIELD_NUMBER: _ClassVar[int]
    USED_BYTES_FIELD_NUMBER: _ClassVar[int]
    CAPACITY_BYTES_FIELD_NUMBER: _ClassVar[int]
    LOOKUPS_FIELD_NUMBER: _ClassVar[int]
    HITS_FIELD_NUMBER: _ClassVar[int]
    EVICTIONS_FIELD_NUMBER: _ClassVar[int]
    STORES_FIELD_NUMBER: _ClassVar[int]
    FAILURES_FIELD_NUMBER: _ClassVar[int]
    LOOKUP_NS_FIELD_NUMBER: _ClassVar[int]
    STORE_NS_FIELD_NUMBER: _ClassVar[int]
    entries: int
    used_bytes: int
    capacity_bytes: int
    lookups: int
    hits: int
    evictions: int
    stores: int
    failures: int
    lookup_ns: int
    store_ns: int
    def __init__(self, entries: _Optional[int] = ..., used_bytes: _Optional[int] = ..., capacity_bytes: _Optional[int] = ..., lookups: _Optional[int] = ..., hits: _Optional[int] = ..., evictions: _Optional[int] = ..., stores: _Optional[int] = ..., failures: _Optional[int] = ..., lookup_ns: _Optional[int] = ..., store_ns: _Optional[int] = ...) -> None: ...

class Payload(_message.Message):
    __slots__ = ("inline", "shared_memory")
    INLINE_FIELD_NUMBER: _ClassVar[int]
    SHARED_MEMORY_FIELD_NUMBER: _ClassVar[int]
    inline: bytes
    shared_memory: SharedMemory
    def __init__(self, inline: _Optional[bytes] = ..., shared_memory: _Optional[_Union[SharedMemory, _Mapping]] = ...) -> None: ...

class SharedMemory(_message.Message):
    __slots__ = ("segment_name", "offset", "size_bytes")
    SEGMENT_NAME_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    segment_name: str
    offset: int
    size_bytes: int
    def __init__(self, segment_name: _Optional[str] = ..., offset: _Optional[int] = ..., size_bytes: _Optional[int] = ...) -> None: ...

class ErrorStatus(_message.Message):
    __slots__ = ("code", "message", "accepted", "by_model", "retry_after_ms")
    CODE_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    ACCEPTED_FIELD_NUMBER: _ClassVar[int]
    BY_MODEL_FIELD_NUMBER: _ClassVar[int]
    RETRY_AFTER_MS_FIELD_NUMBER: _ClassVar[int]
    code: int
    message: str
    accepted: bool
    by_model: bool
    retry_after_ms: int
    def __init__(self, code: _Optional[int] = ..., message: _Optional[str] = ..., accepted: bool = ..., by_model: bool = ..., retry_after_ms: _Optional[int] = ...) -> None: ...

class RequestFrame(_message.Message):
    __slots__ = ("requests", "cancelled_ids", "paused_ids", "resumed_ids", "released_segments")
    REQUESTS_FIELD_NUMBER: _ClassVar[int]
    CANCELLED_IDS_FIELD_NUMBER: _ClassVar[int]
    PAUSED_IDS_FIELD_NUMBER: _ClassVar[int]
    RESUMED_IDS_FIELD_NUMBER: _ClassVar[int]
    RELEASED_SEGMENTS_FIELD_NUMBER: _ClassVar[int]
    requests: _containers.RepeatedCompositeFieldContainer[InferRequest]
    cancelled_ids: _containers.RepeatedScalarFieldContainer[int]
    paused_ids: _containers.RepeatedScalarFieldContainer[int]
    resumed_ids: _containers.RepeatedScalarFieldContainer[int]
    released_segments: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, requests: _Optional[_Iterable[_Union[InferRequest, _Mapping]]] = ..., cancelled_ids: _Optional[_Iterable[int]] = ..., paused_ids: _Optional[_Iterable[int]] = ..., resumed_ids: _Optional[_Iterable[int]] = ..., released_segments: _Optional[_Iterable[str]] = ...) -> None: ...

class InferRequest(_message.Message):
    __slots__ = ("id", "head", "payloads", "request_id", "parameters", "priority", "timeout_us", "remaining_us", "trace_context", "error_status", "digest", "accepts_many", "caller", "resent", "sequence_owner", "timings", "text_digest", "caller_key", "is_shadow", "callable_models", "confined_caller", "sequence_place", "copied_sequence")
    class ParametersEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: _kserve_pb2.InferParameter
        def __init__(self, key: _Optional[str] = ..., value: _Optional[_Union[_kserve_pb2.InferParameter, _Mapping]] = ...) -> None: ...
    ID_FIELD_NUMBER: _ClassVar[int]
    HEAD_FIELD_NUMBER: _ClassVar[int]
    PAYLOADS_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    PARAMETERS_FIELD_NUMBER: _ClassVar[int]
    PRIORITY_FIELD_NUMBER: _ClassVar[int]
    TIMEOUT_US_FIELD_NUMBER: _ClassVar[int]
    REMAINING_US_FIELD_NUMBER: _ClassVar[int]
    TRACE_CONTEXT_FIELD_NUMBER: _ClassVar[int]
    ERROR_STATUS_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    ACCEPTS_MANY_FIELD_NUMBER: _ClassVar[int]
    CALLER_FIELD_NUMBER: _ClassVar[int]
    RESENT_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_OWNER_FIELD_NUMBER: _ClassVar[int]
    TIMINGS_FIELD_NUMBER: _ClassVar[int]
    TEXT_DIGEST_FIELD_NUMBER: _ClassVar[int]
    CALLER_KEY_FIELD_NUMBER: _ClassVar[int]
    IS_SHADOW_FIELD_NUMBER: _ClassVar[int]
    CALLABLE_MODELS_FIELD_NUMBER: _ClassVar[int]
    CONFINED_CALLER_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_PLACE_FIELD_NUMBER: _ClassVar[int]
    COPIED_SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    id: int
    head: bytes
    payloads: _containers.RepeatedCompositeFieldContainer[Payload]
    request_id: str
    parameters: _containers.MessageMap[str, _kserve_pb2.InferParameter]
    priority: int
    timeout_us: int
    remaining_us: int
    trace_context: bytes
    error_status: ErrorStatus
    digest: bytes
    accepts_many: bool
    caller: int
    resent: bool
    sequence_owner: str
    timings: bool
    text_digest: bytes
    caller_key: bytes
    is_shadow: bool
    callable_models: bytes
    confined_caller: int
    sequence_place: bool
    copied_sequence: int
    def __init__(self, id: _Optional[int] = ..., head: _Optional[bytes] = ..., payloads: _Optional[_Iterable[_Union[Payload, _Mapping]]] = ..., request_id: _Optional[str] = ..., parameters: _Optional[_Mapping[str, _kserve_pb2.InferParameter]] = ..., priority: _Optional[int] = ..., timeout_us: _Optional[int] = ..., remaining_us: _Optional[int] = ..., trace_context: _Optional[bytes] = ..., error_status: _Optional[_Union[ErrorStatus, _Mapping]] = ..., digest: _Optional[bytes] = ..., accepts_many: bool = ..., caller: _Optional[int] = ..., resent: bool = ..., sequence_owner: _Optional[str] = ..., timings: bool = ..., text_digest: _Optional[bytes] = ..., caller_key: _Optional[bytes] = ..., is_shadow: bool = ..., callable_models: _Optional[bytes] = ..., confined_caller: _Optional[int] = ..., sequence_place: bool = ..., copied_sequence: _Optional[int] = ...) -> None: ...

class ResponseFrame(_message.Message):
    __slots__ = ("responses", "cached_models", "trace_rules", "log_rules", "traces", "ownership", "inputs_in_use", "timings", "last_counts", "models_changed", "traffic_keys", "model_shadows", "sequence_places")
    class TracesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: int
        value: TracedRequest
        def __init__(self, key: _Optional[int] = ..., value: _Optional[_Union[TracedRequest, _Mapping]] = ...) -> None: ...
    class TimingsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: int
        value: RequestTimings
        def __init__(self, key: _Optional[int] = ..., value: _Optional[_Union[RequestTimings, _Mapping]] = ...) -> None: ...
    class SequencePlacesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: int
        value: SequencePlace
        def __init__(self, key: _Optional[int] = ..., value: _Optional[_Union[SequencePlace, _Mapping]] = ...) -> None: ...
    RESPONSES_FIELD_NUMBER: _ClassVar[int]
    CACHED_MODELS_FIELD_NUMBER: _ClassVar[int]
    TRACE_RULES_FIELD_NUMBER: _ClassVar[int]
    LOG_RULES_FIELD_NUMBER: _ClassVar[int]
    TRACES_FIELD_NUMBER: _ClassVar[int]
    OWNERSHIP_FIELD_NUMBER: _ClassVar[int]
    INPUTS_IN_USE_FIELD_NUMBER: _ClassVar[int]
    TIMINGS_FIELD_NUMBER: _ClassVar[int]
    LAST_COUNTS_FIELD_NUMBER: _ClassVar[int]
    MODELS_CHANGED_FIELD_NUMBER: _ClassVar[int]
    TRAFFIC_KEYS_FIELD_NUMBER: _ClassVar[int]
    MODEL_SHADOWS_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_PLACES_FIELD_NUMBER: _ClassVar[int]
    responses: _containers.RepeatedCompositeFieldContainer[InferResponse]
    cached_models: CachedModels
    trace_rules: TraceRules
    log_rules: LogRules
    traces: _containers.MessageMap[int, TracedRequest]
    ownership: Ownership
    inputs_in_use: _containers.RepeatedScalarFieldContainer[int]
    timings: _containers.MessageMap[int, RequestTimings]
    last_counts: bytes
    models_changed: int
    traffic_keys: TrafficKeys
    model_shadows: ModelShadows
    sequence_places: _containers.MessageMap[int, SequencePlace]
    def __init__(self, responses: _Optional[_Iterable[_Union[InferResponse, _Mapping]]] = ..., cached_models: _Optional[_Union[CachedModels, _Mapping]] = ..., trace_rules: _Optional[_Union[TraceRules, _Mapping]] = ..., log_rules: _Optional[_Union[LogRules, _Mapping]] = ..., traces: _Optional[_Mapping[int, TracedRequest]] = ..., ownership: _Optional[_Union[Ownership, _Mapping]] = ..., inputs_in_use: _Optional[_Iterable[int]] = ..., timings: _Optional[_Mapping[int, RequestTimings]] = ..., last_counts: _Optional[bytes] = ..., models_changed: _Optional[int] = ..., traffic_keys: _Optional[_Union[TrafficKeys, _Mapping]] = ..., model_shadows: _Optional[_Union[ModelShadows, _Mapping]] = ..., sequence_places: _Optional[_Mapping[int, SequencePlace]] = ...) -> None: ...

class SequencePlace(_message.Message):
    __slots__ = ("start", "number")
    START_FIELD_NUMBER: _ClassVar[int]
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    start: int
    number: int
    def __init__(self, start: _Optional[int] = ..., number: _Optional[int] = ...) -> None: ...

class ModelShadows(_message.Message):
    __slots__ = ("models",)
    class ModelsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    MODELS_FIELD_NUMBER: _ClassVar[int]
    models: _containers.ScalarMap[str, str]
    def __init__(self, models: _Optional[_Mapping[str, str]] = ...) -> None: ...

class TrafficKeys(_message.Message):
    __slots__ = ("models", "clients")
    class ModelsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    MODELS_FIELD_NUMBER: _ClassVar[int]
    CLIENTS_FIELD_NUMBER: _ClassVar[int]
    models: _containers.ScalarMap[str, str]
    clients: bool
    def __init__(self, models: _Optional[_Mapping[str, str]] = ..., clients: bool = ...) -> None: ...

class RequestTimings(_message.Message):
    __slots__ = ("phases", "batch_size", "instance", "attempt", "cached")
    PHASES_FIELD_NUMBER: _ClassVar[int]
    BATCH_SIZE_FIELD_NUMBER: _ClassVar[int]
    INSTANCE_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    CACHED_FIELD_NUMBER: _ClassVar[int]
    phases: _containers.RepeatedCompositeFieldContainer[Phase]
    batch_size: int
    instance: str
    attempt: int
    cached: bool
    def __init__(self, phases: _Optional[_Iterable[_Union[Phase, _Mapping]]] = ..., batch_size: _Optional[int] = ..., instance: _Optional[str] = ..., attempt: _Optional[int] = ..., cached: bool = ...) -> None: ...

class Phase(_message.Message):
    __slots__ = ("name", "ns")
    NAME_FIELD_NUMBER: _ClassVar[int]
    NS_FIELD_NUMBER: _ClassVar[int]
    name: str
    ns: int
    def __init__(self, name: _Optional[str] = ..., ns: _Optional[int] = ...) -> None: ...

class Ownership(_message.Message):
    __slots__ = ("scheduler", "epoch", "models", "leaving")
    SCHEDULER_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    MODELS_FIELD_NUMBER: _ClassVar[int]
    LEAVING_FIELD_NUMBER: _ClassVar[int]
    scheduler: str
    epoch: int
    models: _containers.RepeatedScalarFieldContainer[str]
    leaving: bool
    def __init__(self, scheduler: _Optional[str] = ..., epoch: _Optional[int] = ..., models: _Optional[_Iterable[str]] = ..., leaving: bool = ...) -> None: ...

class TracedRequest(_message.Message):
    __slots__ = ("models",)
    MODELS_FIELD_NUMBER: _ClassVar[int]
    models: _containers.RepeatedCompositeFieldContainer[TracedModel]
    def __init__(self, models: _Optional[_Iterable[_Union[TracedModel, _Mapping]]] = ...) -> None: ...

class TracedModel(_message.Message):
    __slots__ = ("context", "parent", "name", "version", "request_id", "times", "tensors")
    CONTEXT_FIELD_NUMBER: _ClassVar[int]
    PARENT_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    TIMES_FIELD_NUMBER: _ClassVar[int]
    TENSORS_FIELD_NUMBER: _ClassVar[int]
    context: bytes
    parent: bytes
    name: str
    version: int
    request_id: str
    times: _containers.RepeatedCompositeFieldContainer[Moment]
    tensors: _containers.RepeatedCompositeFieldContainer[TracedTensor]
    def __init__(self, context: _Optional[bytes] = ..., parent: _Optional[bytes] = ..., name: _Optional[str] = ..., version: _Optional[int] = ..., request_id: _Optional[str] = ..., times: _Optional[_Iterable[_Union[Moment, _Mapping]]] = ..., tensors: _Optional[_Iterable[_Union[TracedTensor, _Mapping]]] = ...) -> None: ...

class TracedTensor(_message.Message):
    __slots__ = ("activity", "name", "datatype", "shape", "data")
    ACTIVITY_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    DATATYPE_FIELD_NUMBER: _ClassVar[int]
    SHAPE_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    activity: str
    name: str
    datatype: str
    shape: _containers.RepeatedScalarFieldContainer[int]
    data: bytes
    def __init__(self, activity: _Optional[str] = ..., name: _Optional[str] = ..., datatype: _Optional[str] = ..., shape: _Optional[_Iterable[int]] = ..., data: _Optional[bytes] = ...) -> None: ...

class Moment(_message.Message):
    __slots__ = ("name", "ns")
    NAME_FIELD_NUMBER: _ClassVar[int]
    NS_FIELD_NUMBER: _ClassVar[int]
    name: str
    ns: int
    def __init__(self, name: _Optional[str] = ..., ns: _Optional[int] = ...) -> None: ...

class CachedModels(_message.Message):
    __slots__ = ("names", "shm_namespace", "digest_key")
    NAMES_FIELD_NUMBER: _ClassVar[int]
    SHM_NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    DIGEST_KEY_FIELD_NUMBER: _ClassVar[int]
    names: _containers.RepeatedScalarFieldContainer[str]
    shm_namespace: str
    digest_key: bytes
    def __init__(self, names: _Optional[_Iterable[str]] = ..., shm_namespace: _Optional[str] = ..., digest_key: _Optional[bytes] = ...) -> None: ...

class TraceRules(_message.Message):
    __slots__ = ("default_rule", "models")
    class ModelsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: TraceRule
        def __init__(self, key: _Optional[str] = ..., value: _Optional[_Union[TraceRule, _Mapping]] = ...) -> None: ...
    DEFAULT_RULE_FIELD_NUMBER: _ClassVar[int]
    MODELS_FIELD_NUMBER: _ClassVar[int]
    default_rule: TraceRule
    models: _containers.MessageMap[str, TraceRule]
    def __init__(self, default_rule: _Optional[_Union[TraceRule, _Mapping]] = ..., models: _Optional[_Mapping[str, TraceRule]] = ...) -> None: ...

class TraceRule(_message.Message):
    __slots__ = ("on", "rate", "count", "log_frequency", "without_times", "tensors", "turn")
    ON_FIELD_NUMBER: _ClassVar[int]
    RATE_FIELD_NUMBER: _ClassVar[int]
    COUNT_FIELD_NUMBER: _ClassVar[int]
    LOG_FREQUENCY_FIELD_NUMBER: _ClassVar[int]
    WITHOUT_TIMES_FIELD_NUMBER: _ClassVar[int]
    TENSORS_FIELD_NUMBER: _ClassVar[int]
    TURN_FIELD_NUMBER: _ClassVar[int]
    on: bool
    rate: int
    count: int
    log_frequency: int
    without_times: bool
    tensors: bool
    turn: int
    def __init__(self, on: bool = ..., rate: _Optional[int] = ..., count: _Optional[int] = ..., log_frequency: _Optional[int] = ..., without_times: bool = ..., tensors: bool = ..., turn: _Optional[int] = ...) -> None: ...

class LogRules(_message.Message):
    __slots__ = ("verbose", "info", "warning", "error", "format")
    VERBOSE_FIELD_NUMBER: _ClassVar[int]
    INFO_FIELD_NUMBER: _ClassVar[int]
    WARNING_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    FORMAT_FIELD_NUMBER: _ClassVar[int]
    verbose: int
    info: bool
    warning: bool
    error: bool
    format: str
    def __init__(self, verbose: _Optional[int] = ..., info: bool = ..., warning: bool = ..., error: bool = ..., format: _Optional[str] = ...) -> None: ...

class InferResponse(_message.Message):
    __slots__ = ("id", "head", "payloads", "error", "more", "rescheduled", "moved")
    ID_FIELD_NUMBER: _ClassVar[int]
    HEAD_FIELD_NUMBER: _ClassVar[int]
    PAYLOADS_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    MORE_FIELD_NUMBER: _ClassVar[int]
    RESCHEDULED_FIELD_NUMBER: _ClassVar[int]
    MOVED_FIELD_NUMBER: _ClassVar[int]
    id: int
    head: bytes
    payloads: _containers.RepeatedCompositeFieldContainer[Payload]
    error: ErrorStatus
    more: bool
    rescheduled: bool
    moved: bool
    def __init__(self, id: _Optional[int] = ..., head: _Optional[bytes] = ..., payloads: _Optional[_Iterable[_Union[Payload, _Mapping]]] = ..., error: _Optional[_Union[ErrorStatus, _Mapping]] = ..., more: bool = ..., rescheduled: bool = ..., moved: bool = ...) -> None: ...

class Batch(_message.Message):
    __slots__ = ("id", "members", "traced", "controls", "exported_slots")
    ID_FIELD_NUMBER: _ClassVar[int]
    MEMBERS_FIELD_NUMBER: _ClassVar[int]
    TRACED_FIELD_NUMBER: _ClassVar[int]
    CONTROLS_FIELD_NUMBER: _ClassVar[int]
    EXPORTED_SLOTS_FIELD_NUMBER: _ClassVar[int]
    id: int
    members: _containers.RepeatedCompositeFieldContainer[BatchMember]
    traced: bool
    controls: _containers.RepeatedCompositeFieldContainer[MemberControl]
    exported_slots: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, id: _Optional[int] = ..., members: _Optional[_Iterable[_Union[BatchMember, _Mapping]]] = ..., traced: bool = ..., controls: _Optional[_Iterable[_Union[MemberControl, _Mapping]]] = ..., exported_slots: _Optional[_Iterable[int]] = ...) -> None: ...

class MemberControl(_message.Message):
    __slots__ = ("batch", "member", "kind")
    class Kind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        CANCEL: _ClassVar[MemberControl.Kind]
        PAUSE: _ClassVar[MemberControl.Kind]
        RESUME: _ClassVar[MemberControl.Kind]
    CANCEL: MemberControl.Kind
    PAUSE: MemberControl.Kind
    RESUME: MemberControl.Kind
    BATCH_FIELD_NUMBER: _ClassVar[int]
    MEMBER_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    batch: int
    member: int
    kind: MemberControl.Kind
    def __init__(self, batch: _Optional[int] = ..., member: _Optional[int] = ..., kind: _Optional[_Union[MemberControl.Kind, str]] = ...) -> None: ...

class BatchMember(_message.Message):
    __slots__ = ("head", "payloads", "request_id", "parameters", "remaining_us", "trace_context", "timeout_us", "id", "sequence_slot", "restore", "returns_state")
    class ParametersEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: _kserve_pb2.InferParameter
        def __init__(self, key: _Optional[str] = ..., value: _Optional[_Union[_kserve_pb2.InferParameter, _Mapping]] = ...) -> None: ...
    HEAD_FIELD_NUMBER: _ClassVar[int]
    PAYLOADS_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    PARAMETERS_FIELD_NUMBER: _ClassVar[int]
    REMAINING_US_FIELD_NUMBER: _ClassVar[int]
    TRACE_CONTEXT_FIELD_NUMBER: _ClassVar[int]
    TIMEOUT_US_FIELD_NUMBER: _ClassVar[int]
    ID_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_SLOT_FIELD_NUMBER: _ClassVar[int]
    RESTORE_FIELD_NUMBER: _ClassVar[int]
    RETURNS_STATE_FIELD_NUMBER: _ClassVar[int]
    head: bytes
    payloads: _containers.RepeatedCompositeFieldContainer[Payload]
    request_id: str
    parameters: _containers.MessageMap[str, _kserve_pb2.InferParameter]
    remaining_us: int
    trace_context: bytes
    timeout_us: int
    id: int
    sequence_slot: int
    restore: SequenceRestore
    returns_state: bool
    def __init__(self, head: _Optional[bytes] = ..., payloads: _Optional[_Iterable[_Union[Payload, _Mapping]]] = ..., request_id: _Optional[str] = ..., parameters: _Optional[_Mapping[str, _kserve_pb2.InferParameter]] = ..., remaining_us: _Optional[int] = ..., trace_context: _Optional[bytes] = ..., timeout_us: _Optional[int] = ..., id: _Optional[int] = ..., sequence_slot: _Optional[int] = ..., restore: _Optional[_Union[SequenceRestore, _Mapping]] = ..., returns_state: bool = ...) -> None: ...

class SequenceRestore(_message.Message):
    __slots__ = ("state", "requests")
    STATE_FIELD_NUMBER: _ClassVar[int]
    REQUESTS_FIELD_NUMBER: _ClassVar[int]
    state: bytes
    requests: _containers.RepeatedCompositeFieldContainer[BatchMember]
    def __init__(self, state: _Optional[bytes] = ..., requests: _Optional[_Iterable[_Union[BatchMember, _Mapping]]] = ...) -> None: ...

class SequenceState(_message.Message):
    __slots__ = ("slot", "state")
    SLOT_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    slot: int
    state: bytes
    def __init__(self, slot: _Optional[int] = ..., state: _Optional[bytes] = ...) -> None: ...

class StateTensors(_message.Message):
    __slots__ = ("tensors",)
    TENSORS_FIELD_NUMBER: _ClassVar[int]
    tensors: _containers.RepeatedCompositeFieldContainer[StateTensor]
    def __init__(self, tensors: _Optional[_Iterable[_Union[StateTensor, _Mapping]]] = ...) -> None: ...

class StateTensor(_message.Message):
    __slots__ = ("shape", "data")
    SHAPE_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    shape: _containers.RepeatedScalarFieldContainer[int]
    data: bytes
    def __init__(self, shape: _Optional[_Iterable[int]] = ..., data: _Optional[bytes] = ...) -> None: ...

class Executed(_message.Message):
    __slots__ = ("id", "responses", "compute_input_ns", "compute_infer_ns", "compute_output_ns", "partial", "busy", "states")
    ID_FIELD_NUMBER: _ClassVar[int]
    RESPONSES_FIELD_NUMBER: _ClassVar[int]
    COMPUTE_INPUT_NS_FIELD_NUMBER: _ClassVar[int]
    COMPUTE_INFER_NS_FIELD_NUMBER: _ClassVar[int]
    COMPUTE_OUTPUT_NS_FIELD_NUMBER: _ClassVar[int]
    PARTIAL_FIELD_NUMBER: _ClassVar[int]
    BUSY_FIELD_NUMBER: _ClassVar[int]
    STATES_FIELD_NUMBER: _ClassVar[int]
    id: int
    responses: _containers.RepeatedCompositeFieldContainer[InferResponse]
    compute_input_ns: int
    compute_infer_ns: int
    compute_output_ns: int
    partial: bool
    busy: bool
    states: _containers.RepeatedCompositeFieldContainer[SequenceState]
    def __init__(self, id: _Optional[int] = ..., responses: _Optional[_Iterable[_Union[InferResponse, _Mapping]]] = ..., compute_input_ns: _Optional[int] = ..., compute_infer_ns: _Optional[int] = ..., compute_output_ns: _Optional[int] = ..., partial: bool = ..., busy: bool = ..., states: _Optional[_Iterable[_Union[SequenceState, _Mapping]]] = ...) -> None: ...

class ExecutorEvent(_message.Message):
    __slots__ = ("hello", "described", "instance_failed", "instance_unloaded", "leaving", "usage", "custom_metrics", "readiness_report", "instance_lost", "withdrawn", "recalled", "begun_requests", "timeline", "load_progress", "call_query")
    HELLO_FIELD_NUMBER: _ClassVar[int]
    DESCRIBED_FIELD_NUMBER: _ClassVar[int]
    INSTANCE_FAILED_FIELD_NUMBER: _ClassVar[int]
    INSTANCE_UNLOADED_FIELD_NUMBER: _ClassVar[int]
    LEAVING_FIELD_NUMBER: _ClassVar[int]
    USAGE_FIELD_NUMBER: _ClassVar[int]
    CUSTOM_METRICS_FIELD_NUMBER: _ClassVar[int]
    READINESS_REPORT_FIELD_NUMBER: _ClassVar[int]
    INSTANCE_LOST_FIELD_NUMBER: _ClassVar[int]
    WITHDRAWN_FIELD_NUMBER: _ClassVar[int]
    RECALLED_FIELD_NUMBER: _ClassVar[int]
    BEGUN_REQUESTS_FIELD_NUMBER: _ClassVar[int]
    TIMELINE_FIELD_NUMBER: _ClassVar[int]
    LOAD_PROGRESS_FIELD_NUMBER: _ClassVar[int]
    CALL_QUERY_FIELD_NUMBER: _ClassVar[int]
    hello: Hello
    described: Described
    instance_failed: InstanceFailed
    instance_unloaded: InstanceUnloaded
    leaving: Leaving
    usage: DeviceUsage
    custom_metrics: CustomMetrics
    readiness_report: ReadinessReport
    instance_lost: InstanceLost
    withdrawn: Withdrawn
    recalled: Recalled
    begun_requests: BegunRequests
    timeline: ExecutorTimeline
    load_progress: LoadProgress
    call_query: CallQuery
    def __init__(self, hello: _Optional[_Union[Hello, _Mapping]] = ..., described: _Optional[_Union[Described, _Mapping]] = ..., instance_failed: _Optional[_Union[InstanceFailed, _Mapping]] = ..., instance_unloaded: _Optional[_Union[InstanceUnloaded, _Mapping]] = ..., leaving: _Optional[_Union[Leaving, _Mapping]] = ..., usage: _Optional[_Union[DeviceUsage, _Mapping]] = ..., custom_metrics: _Optional[_Union[CustomMetrics, _Mapping]] = ..., readiness_report: _Optional[_Union[ReadinessReport, _Mapping]] = ..., instance_lost: _Optional[_Union[InstanceLost, _Mapping]] = ..., withdrawn: _Optional[_Union[Withdrawn, _Mapping]] = ..., recalled: _Optional[_Union[Recalled, _Mapping]] = ..., begun_requests: _Optional[_Union[BegunRequests, _Mapping]] = ..., timeline: _Optional[_Union[ExecutorTimeline, _Mapping]] = ..., load_progress: _Optional[_Union[LoadProgress, _Mapping]] = ..., call_query: _Optional[_Union[CallQuery, _Mapping]] = ...) -> None: ...

class CallQuery(_message.Message):
    __slots__ = ("number", "head", "caller", "confined_caller", "callable_models")
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    HEAD_FIELD_NUMBER: _ClassVar[int]
    CALLER_FIELD_NUMBER: _ClassVar[int]
    CONFINED_CALLER_FIELD_NUMBER: _ClassVar[int]
    CALLABLE_MODELS_FIELD_NUMBER: _ClassVar[int]
    number: int
    head: bytes
    caller: int
    confined_caller: int
    callable_models: bytes
    def __init__(self, number: _Optional[int] = ..., head: _Optional[bytes] = ..., caller: _Optional[int] = ..., confined_caller: _Optional[int] = ..., callable_models: _Optional[bytes] = ...) -> None: ...

class LoadProgress(_message.Message):
    __slots__ = ("command", "instance", "text")
    COMMAND_FIELD_NUMBER: _ClassVar[int]
    INSTANCE_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    command: int
    instance: int
    text: str
    def __init__(self, command: _Optional[int] = ..., instance: _Optional[int] = ..., text: _Optional[str] = ...) -> None: ...

class ExecutorTimeline(_message.Message):
    __slots__ = ("query", "frames")
    QUERY_FIELD_NUMBER: _ClassVar[int]
    FRAMES_FIELD_NUMBER: _ClassVar[int]
    query: int
    frames: _containers.RepeatedScalarFieldContainer[bytes]
    def __init__(self, query: _Optional[int] = ..., frames: _Optional[_Iterable[bytes]] = ...) -> None: ...

class BegunRequests(_message.Message):
    __slots__ = ("ids", "query")
    IDS_FIELD_NUMBER: _ClassVar[int]
    QUERY_FIELD_NUMBER: _ClassVar[int]
    ids: _containers.RepeatedScalarFieldContainer[int]
    query: int
    def __init__(self, ids: _Optional[_Iterable[int]] = ..., query: _Optional[int] = ...) -> None: ...

class Withdrawn(_message.Message):
    __slots__ = ("instance", "batch")
    INSTANCE_FIELD_NUMBER: _ClassVar[int]
    BATCH_FIELD_NUMBER: _ClassVar[int]
    instance: int
    batch: int
    def __init__(self, instance: _Optional[int] = ..., batch: _Optional[int] = ...) -> None: ...

class Recalled(_message.Message):
    __slots__ = ("request", "response")
    REQUEST_FIELD_NUMBER: _ClassVar[int]
    RESPONSE_FIELD_NUMBER: _ClassVar[int]
    request: int
    response: InferResponse
    def __init__(self, request: _Optional[int] = ..., response: _Optional[_Union[InferResponse, _Mapping]] = ...) -> None: ...

class ReadinessReport(_message.Message):
    __slots__ = ("question", "instance", "ready", "asked")
    QUESTION_FIELD_NUMBER: _ClassVar[int]
    INSTANCE_FIELD_NUMBER: _ClassVar[int]
    READY_FIELD_NUMBER: _ClassVar[int]
    ASKED_FIELD_NUMBER: _ClassVar[int]
    question: int
    instance: int
    ready: bool
    asked: bool
    def __init__(self, question: _Optional[int] = ..., instance: _Optional[int] = ..., ready: bool = ..., asked: bool = ...) -> None: ...

class CustomMetrics(_message.Message):
    __slots__ = ("series",)
    SERIES_FIELD_NUMBER: _ClassVar[int]
    series: _containers.RepeatedCompositeFieldContainer[CustomSeries]
    def __init__(self, series: _Optional[_Iterable[_Union[CustomSeries, _Mapping]]] = ...) -> None: ...

class CustomSeries(_message.Message):
    __slots__ = ("name", "description", "kind", "labels", "value", "bounds", "counts", "model")
    class LabelsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    NAME_FIELD_NUMBER: _ClassVar[int]
    DESCRIPTION_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    LABELS_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    BOUNDS_FIELD_NUMBER: _ClassVar[int]
    COUNTS_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    name: str
    description: str
    kind: str
    labels: _containers.ScalarMap[str, str]
    value: float
    bounds: _containers.RepeatedScalarFieldContainer[float]
    counts: _containers.RepeatedScalarFieldContainer[int]
    model: str
    def __init__(self, name: _Optional[str] = ..., description: _Optional[str] = ..., kind: _Optional[str] = ..., labels: _Optional[_Mapping[str, str]] = ..., value: _Optional[float] = ..., bounds: _Optional[_Iterable[float]] = ..., counts: _Optional[_Iterable[int]] = ..., model: _Optional[str] = ...) -> None: ...

class DeviceUsage(_message.Message):
    __slots__ = ("cpu_utilization", "memory_total_bytes", "memory_used_bytes", "gpus", "cpu_periods", "throttled_cpu_periods")
    CPU_UTILIZATION_FIELD_NUMBER: _ClassVar[int]
    MEMORY_TOTAL_BYTES_FIELD_NUMBER: _ClassVar[int]
    MEMORY_USED_BYTES_FIELD_NUMBER: _ClassVar[int]
    GPUS_FIELD_NUMBER: _ClassVar[int]
    CPU_PERIODS_FIELD_NUMBER: _ClassVar[int]
    THROTTLED_CPU_PERIODS_FIELD_NUMBER: _ClassVar[int]
    cpu_utilization: float
    memory_total_bytes: int
    memory_used_bytes: int
    gpus: _containers.RepeatedCompositeFieldContainer[GpuUsage]
    cpu_periods: int
    throttled_cpu_periods: int
    def __init__(self, cpu_utilization: _Optional[float] = ..., memory_total_bytes: _Optional[int] = ..., memory_used_bytes: _Optional[int] = ..., gpus: _Optional[_Iterable[_Union[GpuUsage, _Mapping]]] = ..., cpu_periods: _Optional[int] = ..., throttled_cpu_periods: _Optional[int] = ...) -> None: ...

class GpuUsage(_message.Message):
    __slots__ = ("uuid", "utilization", "memory_total_bytes", "memory_used_bytes", "power_usage_watts", "power_limit_watts", "energy_joules")
    UUID_FIELD_NUMBER: _ClassVar[int]
    UTILIZATION_FIELD_NUMBER: _ClassVar[int]
    MEMORY_TOTAL_BYTES_FIELD_NUMBER: _ClassVar[int]
    MEMORY_USED_BYTES_FIELD_NUMBER: _ClassVar[int]
    POWER_USAGE_WATTS_FIELD_NUMBER: _ClassVar[int]
    POWER_LIMIT_WATTS_FIELD_NUMBER: _ClassVar[int]
    ENERGY_JOULES_FIELD_NUMBER: _ClassVar[int]
    uuid: str
    utilization: float
    memory_total_bytes: int
    memory_used_bytes: int
    power_usage_watts: float
    power_limit_watts: float
    energy_joules: float
    def __init__(self, uuid: _Optional[str] = ..., utilization: _Optional[float] = ..., memory_total_bytes: _Optional[int] = ..., memory_used_bytes: _Optional[int] = ..., power_usage_watts: _Optional[float] = ..., power_limit_watts: _Optional[float] = ..., energy_joules: _Optional[float] = ...) -> None: ...

class Hello(_message.Message):
    __slots__ = ("name", "host", "devices", "backends", "shm_namespace", "process", "begun_requests", "repository_agents", "records_timeline", "drains", "host_name", "sandbox", "python_based")
    NAME_FIELD_NUMBER: _ClassVar[int]
    HOST_FIELD_NUMBER: _ClassVar[int]
    DEVICES_FIELD_NUMBER: _ClassVar[int]
    BACKENDS_FIELD_NUMBER: _ClassVar[int]
    SHM_NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    PROCESS_FIELD_NUMBER: _ClassVar[int]
    BEGUN_REQUESTS_FIELD_NUMBER: _ClassVar[int]
    REPOSITORY_AGENTS_FIELD_NUMBER: _ClassVar[int]
    RECORDS_TIMELINE_FIELD_NUMBER: _ClassVar[int]
    DRAINS_FIELD_NUMBER: _ClassVar[int]
    HOST_NAME_FIELD_NUMBER: _ClassVar[int]
    SANDBOX_FIELD_NUMBER: _ClassVar[int]
    PYTHON_BASED_FIELD_NUMBER: _ClassVar[int]
    name: str
    host: str
    devices: _containers.RepeatedCompositeFieldContainer[Device]
    backends: _containers.RepeatedScalarFieldContainer[str]
    shm_namespace: str
    process: str
    begun_requests: _containers.RepeatedScalarFieldContainer[int]
    repository_agents: _containers.RepeatedScalarFieldContainer[str]
    records_timeline: bool
    drains: bool
    host_name: str
    sandbox: str
    python_based: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, name: _Optional[str] = ..., host: _Optional[str] = ..., devices: _Optional[_Iterable[_Union[Device, _Mapping]]] = ..., backends: _Optional[_Iterable[str]] = ..., shm_namespace: _Optional[str] = ..., process: _Optional[str] = ..., begun_requests: _Optional[_Iterable[int]] = ..., repository_agents: _Optional[_Iterable[str]] = ..., records_timeline: bool = ..., drains: bool = ..., host_name: _Optional[str] = ..., sandbox: _Optional[str] = ..., python_based: _Optional[_Iterable[str]] = ...) -> None: ...

class Device(_message.Message):
    __slots__ = ("kind", "id", "uuid", "name", "memory_bytes")
    class Kind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        CPU: _ClassVar[Device.Kind]
        GPU: _ClassVar[Device.Kind]
    CPU: Device.Kind
    GPU: Device.Kind
    KIND_FIELD_NUMBER: _ClassVar[int]
    ID_FIELD_NUMBER: _ClassVar[int]
    UUID_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    MEMORY_BYTES_FIELD_NUMBER: _ClassVar[int]
    kind: Device.Kind
    id: int
    uuid: str
    name: str
    memory_bytes: int
    def __init__(self, kind: _Optional[_Union[Device.Kind, str]] = ..., id: _Optional[int] = ..., uuid: _Optional[str] = ..., name: _Optional[str] = ..., memory_bytes: _Optional[int] = ...) -> None: ...

class Described(_message.Message):
    __slots__ = ("command", "inputs", "outputs", "error", "config")
    COMMAND_FIELD_NUMBER: _ClassVar[int]
    INPUTS_FIELD_NUMBER: _ClassVar[int]
    OUTPUTS_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    CONFIG_FIELD_NUMBER: _ClassVar[int]
    command: int
    inputs: _containers.RepeatedCompositeFieldContainer[TensorDescription]
    outputs: _containers.RepeatedCompositeFieldContainer[TensorDescription]
    error: ErrorStatus
    config: _model_config_pb2.ModelConfig
    def __init__(self, command: _Optional[int] = ..., inputs: _Optional[_Iterable[_Union[TensorDescription, _Mapping]]] = ..., outputs: _Optional[_Iterable[_Union[TensorDescription, _Mapping]]] = ..., error: _Optional[_Union[ErrorStatus, _Mapping]] = ..., config: _Optional[_Union[_model_config_pb2.ModelConfig, _Mapping]] = ...) -> None: ...

class TensorDescription(_message.Message):
    __slots__ = ("name", "data_type", "dims", "unknown_rank", "optional")
    NAME_FIELD_NUMBER: _ClassVar[int]
    DATA_TYPE_FIELD_NUMBER: _ClassVar[int]
    DIMS_FIELD_NUMBER: _ClassVar[int]
    UNKNOWN_RANK_FIELD_NUMBER: _ClassVar[int]
    OPTIONAL_FIELD_NUMBER: _ClassVar[int]
    name: str
    data_type: _model_config_pb2.DataType
    dims: _containers.RepeatedScalarFieldContainer[int]
    unknown_rank: bool
    optional: bool
    def __init__(self, name: _Optional[str] = ..., data_type: _Optional[_Union[_model_config_pb2.DataType, str]] = ..., dims: _Optional[_Iterable[int]] = ..., unknown_rank: bool = ..., optional: bool = ...) -> None: ...

class InstanceFailed(_message.Message):
    __slots__ = ("instance", "error")
    INSTANCE_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    instance: int
    error: ErrorStatus
    def __init__(self, instance: _Optional[int] = ..., error: _Optional[_Union[ErrorStatus, _Mapping]] = ...) -> None: ...

class InstanceUnloaded(_message.Message):
    __slots__ = ("instance",)
    INSTANCE_FIELD_NUMBER: _ClassVar[int]
    instance: int
    def __init__(self, instance: _Optional[int] = ...) -> None: ...

class InstanceLost(_message.Message):
    __slots__ = ("instance", "begun", "error", "stream")
    INSTANCE_FIELD_NUMBER: _ClassVar[int]
    BEGUN_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    STREAM_FIELD_NUMBER: _ClassVar[int]
    instance: int
    begun: int
    error: ErrorStatus
    stream: int
    def __init__(self, instance: _Optional[int] = ..., begun: _Optional[int] = ..., error: _Optional[_Union[ErrorStatus, _Mapping]] = ..., stream: _Optional[int] = ...) -> None: ...

class Leaving(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ExecutorCommand(_message.Message):
    __slots__ = ("describe", "load", "unload", "log_rules", "release", "readiness_query", "withdraw", "recall", "report_begun", "report_timeline", "drain", "access_control", "call_rights")
    DESCRIBE_FIELD_NUMBER: _ClassVar[int]
    LOAD_FIELD_NUMBER: _ClassVar[int]
    UNLOAD_FIELD_NUMBER: _ClassVar[int]
    LOG_RULES_FIELD_NUMBER: _ClassVar[int]
    RELEASE_FIELD_NUMBER: _ClassVar[int]
    READINESS_QUERY_FIELD_NUMBER: _ClassVar[int]
    WITHDRAW_FIELD_NUMBER: _ClassVar[int]
    RECALL_FIELD_NUMBER: _ClassVar[int]
    REPORT_BEGUN_FIELD_NUMBER: _ClassVar[int]
    REPORT_TIMELINE_FIELD_NUMBER: _ClassVar[int]
    DRAIN_FIELD_NUMBER: _ClassVar[int]
    ACCESS_CONTROL_FIELD_NUMBER: _ClassVar[int]
    CALL_RIGHTS_FIELD_NUMBER: _ClassVar[int]
    describe: Describe
    load: LoadInstance
    unload: UnloadInstance
    log_rules: LogRules
    release: Release
    readiness_query: ReadinessQuery
    withdraw: Withdraw
    recall: Recall
    report_begun: ReportBegun
    report_timeline: ReportTimeline
    drain: Drain
    access_control: AccessControl
    call_rights: CallRights
    def __init__(self, describe: _Optional[_Union[Describe, _Mapping]] = ..., load: _Optional[_Union[LoadInstance, _Mapping]] = ..., unload: _Optional[_Union[UnloadInstance, _Mapping]] = ..., log_rules: _Optional[_Union[LogRules, _Mapping]] = ..., release: _Optional[_Union[Release, _Mapping]] = ..., readiness_query: _Optional[_Union[ReadinessQuery, _Mapping]] = ..., withdraw: _Optional[_Union[Withdraw, _Mapping]] = ..., recall: _Optional[_Union[Recall, _Mapping]] = ..., report_begun: _Optional[_Union[ReportBegun, _Mapping]] = ..., report_timeline: _Optional[_Union[ReportTimeline, _Mapping]] = ..., drain: _Optional[_Union[Drain, _Mapping]] = ..., access_control: _Optional[_Union[AccessControl, _Mapping]] = ..., call_rights: _Optional[_Union[CallRights, _Mapping]] = ...) -> None: ...

class AccessControl(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class CallRights(_message.Message):
    __slots__ = ("number", "callable_models", "error")
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    CALLABLE_MODELS_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    number: int
    callable_models: bytes
    error: ErrorStatus
    def __init__(self, number: _Optional[int] = ..., callable_models: _Optional[bytes] = ..., error: _Optional[_Union[ErrorStatus, _Mapping]] = ...) -> None: ...

class Drain(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ReportTimeline(_message.Message):
    __slots__ = ("query", "last_ns")
    QUERY_FIELD_NUMBER: _ClassVar[int]
    LAST_NS_FIELD_NUMBER: _ClassVar[int]
    query: int
    last_ns: int
    def __init__(self, query: _Optional[int] = ..., last_ns: _Optional[int] = ...) -> None: ...

class Withdraw(_message.Message):
    __slots__ = ("instance", "batch")
    INSTANCE_FIELD_NUMBER: _ClassVar[int]
    BATCH_FIELD_NUMBER: _ClassVar[int]
    instance: int
    batch: int
    def __init__(self, instance: _Optional[int] = ..., batch: _Optional[int] = ...) -> None: ...

class ReportBegun(_message.Message):
    __slots__ = ("query", "scheduler")
    QUERY_FIELD_NUMBER: _ClassVar[int]
    SCHEDULER_FIELD_NUMBER: _ClassVar[int]
    query: int
    scheduler: str
    def __init__(self, query: _Optional[int] = ..., scheduler: _Optional[str] = ...) -> None: ...

class Recall(_message.Message):
    __slots__ = ("request",)
    REQUEST_FIELD_NUMBER: _ClassVar[int]
    request: int
    def __init__(self, request: _Optional[int] = ...) -> None: ...

class ReadinessQuery(_message.Message):
    __slots__ = ("question", "instance")
    QUESTION_FIELD_NUMBER: _ClassVar[int]
    INSTANCE_FIELD_NUMBER: _ClassVar[int]
    question: int
    instance: int
    def __init__(self, question: _Optional[int] = ..., instance: _Optional[int] = ...) -> None: ...

class Describe(_message.Message):
    __slots__ = ("command", "config", "version_path", "files_digest")
    COMMAND_FIELD_NUMBER: _ClassVar[int]
    CONFIG_FIELD_NUMBER: _ClassVar[int]
    VERSION_PATH_FIELD_NUMBER: _ClassVar[int]
    FILES_DIGEST_FIELD_NUMBER: _ClassVar[int]
    command: int
    config: _model_config_pb2.ModelConfig
    version_path: str
    files_digest: bytes
    def __init__(self, command: _Optional[int] = ..., config: _Optional[_Union[_model_config_pb2.ModelConfig, _Mapping]] = ..., version_path: _Optional[str] = ..., files_digest: _Optional[bytes] = ...) -> None: ...

class LoadInstance(_message.Message):
    __slots__ = ("instance", "config", "version", "version_path", "instance_name", "kind", "device_id", "backend_settings", "shm_namespace", "scheduler", "epoch", "model", "files_digest", "kept_bytes")
    class BackendSettingsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    class KeptBytesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    INSTANCE_FIELD_NUMBER: _ClassVar[int]
    CONFIG_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    VERSION_PATH_FIELD_NUMBER: _ClassVar[int]
    INSTANCE_NAME_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    DEVICE_ID_FIELD_NUMBER: _ClassVar[int]
    BACKEND_SETTINGS_FIELD_NUMBER: _ClassVar[int]
    SHM_NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    SCHEDULER_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    FILES_DIGEST_FIELD_NUMBER: _ClassVar[int]
    KEPT_BYTES_FIELD_NUMBER: _ClassVar[int]
    instance: int
    config: _model_config_pb2.ModelConfig
    version: int
    version_path: str
    instance_name: str
    kind: Device.Kind
    device_id: int
    backend_settings: _containers.ScalarMap[str, str]
    shm_namespace: str
    scheduler: str
    epoch: int
    model: str
    files_digest: bytes
    kept_bytes: _containers.ScalarMap[str, int]
    def __init__(self, instance: _Optional[int] = ..., config: _Optional[_Union[_model_config_pb2.ModelConfig, _Mapping]] = ..., version: _Optional[int] = ..., version_path: _Optional[str] = ..., instance_name: _Optional[str] = ..., kind: _Optional[_Union[Device.Kind, str]] = ..., device_id: _Optional[int] = ..., backend_settings: _Optional[_Mapping[str, str]] = ..., shm_namespace: _Optional[str] = ..., scheduler: _Optional[str] = ..., epoch: _Optional[int] = ..., model: _Optional[str] = ..., files_digest: _Optional[bytes] = ..., kept_bytes: _Optional[_Mapping[str, int]] = ...) -> None: ...

class Release(_message.Message):
    __slots__ = ("segment_names", "discard")
    SEGMENT_NAMES_FIELD_NUMBER: _ClassVar[int]
    DISCARD_FIELD_NUMBER: _ClassVar[int]
    segment_names: _containers.RepeatedScalarFieldContainer[str]
    discard: bool
    def __init__(self, segment_names: _Optional[_Iterable[str]] = ..., discard: bool = ...) -> None: ...

class UnloadInstance(_message.Message):
    __slots__ = ("instance", "keep")
    INSTANCE_FIELD_NUMBER: _ClassVar[int]
    KEEP_FIELD_NUMBER: _ClassVar[int]
    instance: int
    keep: bool
    def __init__(self, instance: _Optional[int] = ..., keep: bool = ...) -> None: ...
