package store

import (
	"context"
	"time"

	"agentsvc/schemas/api"
	"agentsvc/schemas/id"
)

// AuditFilter narrows the audit log; zero fields match all.
type AuditFilter struct {
	Actor, Action *string
	TargetKind    *string
	Target        *id.UUID
	Since         *time.Time // at or after
	Until         *time.Time // before
}

// AuditLog returns rows of the audit log, newest first, after at; there may be one more than
// limit.
func (v View) AuditLog(ctx context.Context, f AuditFilter, at id.AuditID, limit int) ([]api.AuditEntry, error) {
	from, n := before(at.UUID, limit)
	rows, err := listed[struct {
		ID         id.AuditID
		At         time.Time
		Actor      string
		Action     string
		TargetKind string
		TargetID   id.UUID
		IP         *string
		Detail     []byte
	}](ctx, v, "audit", v.tenant, until(f.Until, from), f.Actor, f.Action, f.TargetKind, f.Target, f.Since, f.Until, n, since(f.Since))
	if err != nil {
		return nil, err
	}
	out := make([]api.AuditEntry, len(rows))
	for i, r := range rows {
		out[i] = api.AuditEntry{ID: r.ID, At: r.At, Actor: r.Actor, Action: r.Action,
			Target: api.AuditTarget{Kind: r.TargetKind, ID: r.TargetID}, IP: r.IP, Detail: api.Value(r.Detail)}
	}
	return out, nil
}
