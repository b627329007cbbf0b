"""The tables of deliveries and destinations of an outbox table called `outbox`."""

TABLES = """
CREATE TABLE outbox_delivery (
  id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  message_id uuid NOT NULL DEFAULT gen_random_uuid(),
  event text NOT NULL DEFAULT '',
  destination text NOT NULL,
  key text NOT NULL DEFAULT '',
  is_ordered boolean NOT NULL GENERATED ALWAYS AS (key <> '') STORED,
  payload bytea NOT NULL DEFAULT '',
  content_type text NOT NULL DEFAULT 'application/json',
  created_at timestamptz NOT NULL DEFAULT clock_timestamp(),
  available_at timestamptz NOT NULL DEFAULT clock_timestamp(),
  attempts integer NOT NULL DEFAULT 0,
  leases integer NOT NULL DEFAULT 0,
  lease_token uuid,
  lease_until timestamptz,
  charged_lease uuid,
  failed_at timestamptz,
  last_error text NOT NULL DEFAULT '',
  history jsonb NOT NULL DEFAULT '[]',
  died_at timestamptz,
  dead_reason text NOT NULL DEFAULT '',
  blocks_key boolean NOT NULL DEFAULT false,
  CHECK ((lease_token IS NULL) = (lease_until IS NULL)),
  CHECK (lease_token IS NULL OR died_at IS NULL)
);
CREATE INDEX ON outbox_delivery (destination, is_ordered, available_at, id)
  WHERE lease_token IS NULL AND died_at IS NULL AND leases = 0;
CREATE INDEX ON outbox_delivery (destination, available_at, id)
  WHERE lease_token IS NULL AND died_at IS NULL AND leases > 0;
CREATE INDEX ON outbox_delivery (destination, key, id) WHERE is_ordered AND (died_at IS NULL OR blocks_key);
CREATE INDEX ON outbox_delivery (lease_until) WHERE lease_token IS NOT NULL;
CREATE TABLE outbox_destination (
  name text PRIMARY KEY,
  version bigint NOT NULL DEFAULT 0,
  access text NOT NULL DEFAULT 'closed',
  wait_until timestamptz NOT NULL DEFAULT clock_timestamp(),
  failures integer NOT NULL DEFAULT 0,
  failing_since timestamptz,
  reason text NOT NULL DEFAULT '',
  next_at timestamptz
);
"""
