"""Our tables, beside Optuna's in the same database. They are append-only and they are the truth."""

from __future__ import annotations

from sqlalchemy import Boolean, Column, Float, ForeignKey, Integer, MetaData, String, Table, Text, UniqueConstraint

SCHEMA_VERSION = 1

metadata = MetaData()

schema = Table("autotune_schema", metadata, Column("version", Integer, nullable=False))

study = Table(
    "autotune_study",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("name", String(64), nullable=False, unique=True),
    Column("spec", Text, nullable=False, comment="the resolved study as JSON, without secrets"),
    Column("space_fingerprint", String(64), nullable=False),
    Column("created_at", Float, nullable=False, comment="Unix seconds"),
)

started = Table(
    "autotune_started",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("study_id", ForeignKey("autotune_study.id"), nullable=False, index=True),
    Column("number", Integer, nullable=False),
    Column("attempt", Integer, nullable=False),
    Column("proposal", Text, nullable=False, comment="what was about to run; a row without a trial was killed"),
    Column("started_at", Float, nullable=False),
    UniqueConstraint("study_id", "number"),
)

trial = Table(
    "autotune_trial",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("study_id", ForeignKey("autotune_study.id"), nullable=False, index=True),
    Column("number", Integer, nullable=False),
    Column("config_hash", String(12), nullable=False, index=True),
    Column("origin", String(16), nullable=False),
    Column("outcome", String(16), nullable=False),
    Column("cause", Text),
    Column("reason", Text),
    Column("arguments", Text, nullable=False, comment="arguments and environment asked for, as JSON"),
    Column("resolved", Text, comment="what the engine says it runs with, as JSON"),
    Column("started_at", Float, nullable=False),
    Column("seconds", Float, nullable=False),
    Column("gpus", Integer, nullable=False),
    Column("restarted", Boolean, nullable=False),
    Column("record", Text, nullable=False, comment="the whole TrialRecord as JSON"),
    UniqueConstraint("study_id", "number"),
)

phase = Table(
    "autotune_phase",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("trial_id", ForeignKey("autotune_trial.id"), nullable=False, index=True),
    Column(
        "kind", String(8), nullable=False, comment="`start` for a phase of the start, `stage` for a stage of the trial"
    ),
    Column("name", Text, nullable=False),
    Column("seconds", Float, nullable=False),
)

measurement = Table(
    "autotune_measurement",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("trial_id", ForeignKey("autotune_trial.id"), nullable=False, index=True),
    Column("level", Text, nullable=False),
    Column("level_value", Float, nullable=False),
    Column("metric", Text, nullable=False),
    Column("value", Float, nullable=False),
    Column("low", Float),
    Column("high", Float),
    Column("n", Integer),
)

fingerprint = Table(
    "autotune_fingerprint",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("trial_id", ForeignKey("autotune_trial.id"), nullable=False, index=True),
    Column("name", Text, nullable=False),
    Column("value", Text, nullable=False),
)

document = Table(
    "autotune_document",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("study_id", ForeignKey("autotune_study.id"), nullable=False, index=True),
    Column("kind", String(32), nullable=False, comment="`quality`, `calibration`, `recommendation`, `decision`, ..."),
    Column("key", Text, nullable=False),
    Column("body", Text, nullable=False, comment="JSON"),
    Column("created_at", Float, nullable=False),
)
