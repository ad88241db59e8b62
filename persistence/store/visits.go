package store

import (
	"context"
	"encoding/json"

	"agentsvc/schemas/id"
)

// Person is who a tenant's back end says that a visitor is.
type Person struct {
	ExternalID  string
	Name, Email *string         // nil: not said
	Meta        json.RawMessage // an object; nil: not said
}

// Visit is a session of the embed API that begins.
type Visit struct {
	Key     id.EmbedKeyID
	Visitor id.VisitorID
	Origin  string
	Person  *Person // nil: nobody knows
}

// BeginVisit knows the person as an end user, and says in the audit log that a session
// begins: on behalf of the end user, or else of by.
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
