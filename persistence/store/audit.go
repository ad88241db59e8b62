package store

import (
	"context"
	"strings"
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

// args returns the query of a list and its arguments. What reads all of a tenant's log, because no index leads to what
// matches, is a list without filters, of messages, or of what a key or a visitor did.
func (f AuditFilter) args(tenant id.TenantID, at id.AuditID, limit int) (name string, args []any) {
	from, n := before(at.UUID, limit)
	to, oldest := until(f.Until, from), since(f.Since)
	args = []any{tenant, to, f.Actor, f.Action, f.TargetKind, f.Target, f.Since, f.Until, n, oldest}
	switch {
	case f.Target != nil:
		made := f.Target.Time()
		least, end := around(&made, &made, oldest, to)
		return "audit_of_target", append(args, least, end)
	case f.Actor != nil && strings.HasPrefix(*f.Actor, "user:"):
		return "audit_of_user", args
	case f.Action != nil && *f.Action != "message.create":
		return "audit_of_action", args
	}
	return "audit", args
}

// AuditLog returns rows of the audit log, newest first, after at; there may be one more than
// limit.
func (v View) AuditLog(ctx context.Context, f AuditFilter, at id.AuditID, limit int) ([]api.AuditEntry, error) {
	name, args := f.args(v.tenant, at, limit)
	rows, err := listed[struct {
		ID         id.AuditID
		At         time.Time
		Actor      string
		Action     string
		TargetKind string
		TargetID   id.UUID
		IP         *string
		Detail     []byte
	}](ctx, v, name, args...)
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
