package webhook

import (
	"bytes"
	"crypto/rand"
	"encoding/base64"
	"encoding/json"
	"time"
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
	return encode(Envelope{ID: id, Type: t, Data: encode(data), CreatedAt: at.UTC()})
}

// encode is jsontext.Must, written out: receivers copy this package, which needs the standard library alone.
func encode(v any) []byte {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	if err := e.Encode(v); err != nil {
		panic(err)
	}
	return bytes.TrimSuffix(b.Bytes(), []byte("\n"))
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
