-- +goose Up
CREATE TABLE payments (
    id                   bigint GENERATED ALWAYS AS IDENTITY,
    order_id             text NOT NULL,
    payment_key          text NOT NULL,
    amount               bigint NOT NULL,
    currency             text NOT NULL,
    status               text NOT NULL,
    holds_order          boolean NOT NULL,
    version              bigint NOT NULL,
    maybe_sent           boolean NOT NULL,
    leased               boolean NOT NULL,
    due_at               timestamptz,
    reserved_at          timestamptz NOT NULL,
    first_sent_at        timestamptz,
    last_sent_at         timestamptz,
    sends                integer NOT NULL,
    key_spent            boolean NOT NULL DEFAULT false,
    looks                integer NOT NULL DEFAULT 0,
    told                 boolean NOT NULL DEFAULT false,
    member_id            text NOT NULL DEFAULT '',
    receipt_email        text NOT NULL DEFAULT '',
    method               text NOT NULL DEFAULT '',
    approved_at          timestamptz,
    receipt_url          text NOT NULL DEFAULT '',
    canceled_amount      bigint NOT NULL DEFAULT 0,
    virtual_account      jsonb,
    failure_code         text NOT NULL DEFAULT '',
    failure_gateway_code text NOT NULL DEFAULT '',
    failure_message      text NOT NULL DEFAULT '',
    notices_missing      boolean NOT NULL DEFAULT false,
    created_at           timestamptz NOT NULL,
    updated_at           timestamptz NOT NULL,
    CONSTRAINT payments_pkey PRIMARY KEY (id),
    CONSTRAINT payments_payment_key_key UNIQUE (payment_key),
    CONSTRAINT payments_status_check
        CHECK (status IN ('PENDING', 'AWAITING_DEPOSIT', 'PAID', 'FAILED', 'CANCELED')),
    CONSTRAINT payments_amount_check CHECK (amount > 0),
    CONSTRAINT payments_holds_order_check CHECK (holds_order OR status = 'FAILED'),
    CONSTRAINT payments_pending_due_check CHECK (status <> 'PENDING' OR due_at IS NOT NULL),
    CONSTRAINT payments_leased_due_check CHECK (NOT leased OR due_at IS NOT NULL)
) WITH (fillfactor = 80);

-- No status in a predicate: every move would have to touch the index.
CREATE UNIQUE INDEX payments_order_id_held_key ON payments (order_id) WHERE holds_order;
CREATE INDEX payments_order_id_let_go_idx ON payments (order_id) WHERE NOT holds_order;
CREATE INDEX payments_due_at_idx ON payments (due_at) WHERE due_at IS NOT NULL;
CREATE INDEX payments_notices_missing_idx ON payments (id) WHERE notices_missing;

-- payment_events is the history. It has no foreign key (9 % of a settle) and nobody may rewrite it.
CREATE TABLE payment_events (
    payment_id  bigint NOT NULL,
    version     bigint NOT NULL,
    from_status text NOT NULL,
    to_status   text NOT NULL,
    actor       text NOT NULL,
    reason      text NOT NULL,
    evidence    jsonb,
    at          timestamptz NOT NULL DEFAULT now(),
    CONSTRAINT payment_events_pkey PRIMARY KEY (payment_id, version)
);

-- +goose StatementBegin
CREATE FUNCTION payment_events_append_only() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION 'payment_events is append only' USING ERRCODE = 'insufficient_privilege';
END
$$;
-- +goose StatementEnd

CREATE TRIGGER payment_events_append_only
    BEFORE UPDATE OR DELETE OR TRUNCATE ON payment_events
    FOR EACH STATEMENT EXECUTE FUNCTION payment_events_append_only();

-- cancels holds ours ("c-" and 26 characters, stored before it is sent) and those that Toss shows us ("g-…").
CREATE TABLE cancels (
    id              text NOT NULL,
    payment_id      bigint NOT NULL,
    payment_key     text NOT NULL,
    sends           integer NOT NULL DEFAULT 0,
    key_spent       boolean NOT NULL DEFAULT false,
    amount          bigint NOT NULL,
    reason          text NOT NULL DEFAULT '',
    state           text NOT NULL,
    transaction_key text NOT NULL DEFAULT '',
    ours            boolean NOT NULL,
    created_at      timestamptz NOT NULL DEFAULT now(),
    done_at         timestamptz,
    CONSTRAINT cancels_pkey PRIMARY KEY (id),
    CONSTRAINT cancels_state_check CHECK (state IN ('open', 'done', 'refused', 'moot')),
    CONSTRAINT cancels_done_at_check CHECK ((done_at IS NULL) = (state = 'open'))
);

CREATE UNIQUE INDEX cancels_payment_id_open_key ON cancels (payment_id) WHERE done_at IS NULL;
CREATE INDEX cancels_payment_id_idx ON cancels (payment_id);

CREATE TABLE incidents (
    id          bigint GENERATED ALWAYS AS IDENTITY,
    payment_id  bigint,
    payment_key text NOT NULL,
    order_id    text NOT NULL DEFAULT '',
    kind        text NOT NULL,
    evidence    jsonb,
    opened_at   timestamptz NOT NULL DEFAULT now(),
    resolved_at timestamptz,
    resolved_by text NOT NULL DEFAULT '',
    action      text NOT NULL DEFAULT '',
    note        text NOT NULL DEFAULT '',
    CONSTRAINT incidents_pkey PRIMARY KEY (id),
    CONSTRAINT incidents_kind_check CHECK (kind IN ('unknown_outcome', 'mismatch', 'cancel_failed',
        'unexpected_state', 'orphan_approval', 'dead_notice'))
);

CREATE UNIQUE INDEX incidents_open_key ON incidents (payment_key, kind) WHERE resolved_at IS NULL;

-- notices is the outbox. It has no foreign key and no check: nothing in it may keep a payment from being settled.
CREATE TABLE notices (
    id           uuid NOT NULL DEFAULT gen_random_uuid(),
    payment_id   bigint NOT NULL,
    kind         text NOT NULL,
    event        text NOT NULL,
    sequence     bigint NOT NULL,
    state        text NOT NULL DEFAULT 'queued',
    attempts     integer NOT NULL DEFAULT 0,
    due_at       timestamptz DEFAULT now(),
    fence        bigint NOT NULL DEFAULT 0,
    last_error   text NOT NULL DEFAULT '',
    created_at   timestamptz NOT NULL DEFAULT now(),
    delivered_at timestamptz,
    CONSTRAINT notices_pkey PRIMARY KEY (id),
    CONSTRAINT notices_event_key UNIQUE (payment_id, kind, event)
);

CREATE INDEX notices_due_at_idx ON notices (due_at) WHERE due_at IS NOT NULL;
CREATE INDEX notices_dead_idx ON notices (created_at) WHERE state = 'dead';

CREATE TABLE webhook_deliveries (
    transmission_id text NOT NULL,
    event_type      text NOT NULL DEFAULT '',
    payment_key     text NOT NULL DEFAULT '',
    order_id        text NOT NULL DEFAULT '',
    state           text NOT NULL DEFAULT 'received',
    due_at          timestamptz,
    received_at     timestamptz NOT NULL DEFAULT now(),
    done_at         timestamptz,
    CONSTRAINT webhook_deliveries_pkey PRIMARY KEY (transmission_id)
);

CREATE INDEX webhook_deliveries_due_at_idx ON webhook_deliveries (due_at) WHERE due_at IS NOT NULL;

-- +goose Down
DROP TABLE webhook_deliveries, notices, incidents, cancels, payment_events, payments;
DROP FUNCTION payment_events_append_only();
