-- The list of a trigger's runs. Runs of other origins pay nothing for it. Without the tenant in front: see runs_agent. An operator
-- with a large table has created it before, without locks (operator-guide.md, Upgrade).
CREATE INDEX IF NOT EXISTS runs_trigger ON runs (origin_id, id) WHERE origin_kind = 'trigger';
