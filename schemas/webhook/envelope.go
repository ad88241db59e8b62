package webhook

import (
	"crypto/rand"
	"encoding/base64"
	"encoding/json"
	"time"

	"agentsvc/schemas/jsontext"
)

// Envelope is the body of every attempt of an event's deliveries (service.md,
// Events, Webhooks). ID is the event's, the same for all endpoints.
type Envelope struct {
	ID        string          `json:"id"`
	Type      Type            `json:"type"`
	Data      json.RawMessage `json:"data"`
	CreatedAt time.Time       `json:"created_at"`
}

// Encode returns the body of an event. data must be a plain struct that encoding/json can
// encode. The body has no escapes for HTML, which would make six bytes of one.
func Encode(id string, t Type, data any, at time.Time) []byte {
	return jsontext.Must(Envelope{ID: id, Type: t, Data: jsontext.Must(data), CreatedAt: at.UTC()})
}

// secretScheme is the prefix of every endpoint's secret.
const secretScheme = "whsec_"

// NewSecret returns a new secret for an endpoint.
func NewSecret() string {
	var b [32]byte
	if _, err := rand.Read(b[:]); err != nil {
		panic(err) // crypto/rand never fails on supported systems
	}
	return secretScheme + base64.RawURLEncoding.EncodeToString(b[:])
}
