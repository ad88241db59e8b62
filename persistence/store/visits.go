package store

import (
	"context"
	"encoding/json"

	"agentsvc/schemas/id"
)

// Person is a visitor as identified by the tenant's back end.
type Person struct {
	ExternalID  string
	Name, Email *string         // nil: not given
	Meta        json.RawMessage // an object; nil: not given
}

// Visit is a new session of the embed API.
type Visit struct {
	Key     id.EmbedKeyID
	Visitor id.VisitorID
	Origin  string
	Person  *Person // nil for an anonymous visitor
}

// BeginVisit creates or updates the person's end user and writes the session's audit row,
// with the end user, or else by, as its actor.
func (s *Store) BeginVisit(ctx context.Context, by By, v Visit) (user *id.EndUserID, err error) {
	err = s.Change(ctx, by, func(ctx context.Context, tx *Tx) ([]byte, error) {
		if p := v.Person; p != nil {
			u, err := tx.UpsertEndUser(ctx, p.ExternalID, p.Name, p.Email, p.Meta)
			if err != nil {
				return nil, err
			}
			user, tx.by.Actor = &u, "embed:eu:"+u.String()
		}
		if _, err := tx.exec(ctx, "visit_used", tx.tenant, v.Key); err != nil {
			return nil, err
		}
		return nil, tx.Audit(ctx, "embed.session", "embed_key", v.Key.UUID, map[string]any{"visitor_id": v.Visitor, "origin": v.Origin})
	})
	return user, err
}
