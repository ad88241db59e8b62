-- name: settle_flush
-- Reports whether a flush was committed.
SELECT EXISTS (SELECT FROM flushes WHERE lane = $1 AND n = $2)

-- What became of operations. Each query answers, by place (ord), only for rows
-- that there is something to say of; written: by this operation. Only last_op can say
-- that: ids of messages and audit rows, and sealed responses, may belong to an order,
-- which comes again under another operation.

-- name: settle_thread_inserts
SELECT u.ord, coalesce(t.last_op = u.op, false) AS written
FROM unnest($1::int[], $2::uuid[], $3::uuid[], $4::uuid[]) AS u (ord, tenant_id, id, op)
JOIN threads t ON t.tenant_id = u.tenant_id AND t.id = u.id

-- name: settle_threads
SELECT u.ord, coalesce(t.last_op = u.op, false) AS written
FROM unnest($1::int[], $2::uuid[], $3::uuid[], $4::bigint[], $5::bigint[], $6::uuid[]) AS u (ord, tenant_id, id, version, epoch, op)
LEFT JOIN threads t ON t.tenant_id = u.tenant_id AND t.id = u.id
WHERE t.id IS NULL OR t.version <> u.version OR t.owner_epoch <> u.epoch

-- name: settle_run_updates
SELECT u.ord, coalesce(r.last_op = u.op, false) AS written
FROM unnest($1::int[], $2::uuid[], $3::uuid[], $4::bigint[], $5::bigint[], $6::uuid[]) AS u (ord, tenant_id, id, version, epoch, op)
LEFT JOIN runs r ON r.tenant_id = u.tenant_id AND r.id = u.id
WHERE r.id IS NULL OR r.version <> u.version OR r.owner_epoch <> u.epoch

-- name: settle_approvals
SELECT u.ord, coalesce(a.last_op = u.op, false) AS written
FROM unnest($1::int[], $2::uuid[], $3::uuid[], $4::bigint[], $5::bigint[], $6::uuid[]) AS u (ord, tenant_id, id, version, epoch, op)
LEFT JOIN approvals a ON a.tenant_id = u.tenant_id AND a.id = u.id
WHERE a.id IS NULL OR a.version <> u.version OR a.owner_epoch <> u.epoch

-- name: settle_run_inserts
SELECT u.ord, coalesce(r.last_op = u.op, false) AS written
FROM unnest($1::int[], $2::uuid[], $3::uuid[], $4::uuid[]) AS u (ord, tenant_id, id, op)
JOIN runs r ON r.tenant_id = u.tenant_id AND r.id = u.id

-- name: settle_idempotency
SELECT u.ord, false AS written
FROM unnest($1::int[], $2::uuid[], $3::bytea[]) AS u (ord, tenant_id, digest)
JOIN idempotency i ON i.tenant_id = u.tenant_id AND i.digest = u.digest
