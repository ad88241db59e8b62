package journal

import (
	"time"

	"agentsvc/schemas/id"
	"agentsvc/schemas/webhook"
)

// NewEvent is an event of a type, under an id of its own: its body is frozen here.
// data is one of the structs of package webhook. Callers first ask whether the
// tenant has an endpoint that may want the event, since a body costs time.
func NewEvent(shard id.Shard, t webhook.Type, data any, at time.Time) Event {
	at = Kept(at)
	e := Event{ID: id.EventID{UUID: id.New(shard)}, Type: t, At: at}
	e.Body = webhook.Encode(e.ID.String(), t, data, at)
	return e
}

// Kept is a time as the database keeps it, so that an event says the same as the
// rows that it is about.
func Kept(t time.Time) time.Time { return t.UTC().Truncate(time.Microsecond) }
