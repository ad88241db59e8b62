package model

import (
	"context"
	"net/http"
	"time"

	schema "agentsvc/schemas/model"
	fair "agentsvc/schemas/turn"
	"agentsvc/transport/egress"
	"agentsvc/transport/model/simulated"
)

// Kinds of providers: the two protocols, and the built-in model.
const (
	Simulated = "simulated"
	OpenAI    = "openai"
	Anthropic = "anthropic"
)

// Secret is an API key in plain text. It prints and marshals as "[redacted]".
type Secret string

// String implements fmt.Stringer.
func (Secret) String() string { return "[redacted]" }

// GoString implements fmt.GoStringer.
func (Secret) GoString() string { return "[redacted]" }

// MarshalText implements encoding.TextMarshaler.
func (Secret) MarshalText() ([]byte, error) { return []byte("[redacted]"), nil }

// Provider is the endpoint and key of a model provider. An empty BaseURL means the protocol's
// own provider; with an empty APIKey no key is sent.
type Provider struct {
	Kind    string
	BaseURL string
	APIKey  Secret
}

// Config holds the settings of a Registry.
type Config struct {
	Guard *egress.Guard
	// OpenAI and Anthropic are the deployment's own providers (OPENAI_API_KEY,
	// OPENAI_BASE_URL and so on); without key and URL a provider is not configured.
	OpenAI, Anthropic Provider
	// RequireTLS refuses plain http to providers outside the allowed ranges.
	RequireTLS bool
	// Sleep and Rand are passed to Retrying.
	Sleep func(ctx context.Context, d time.Duration) error
	Rand  func() float64
}

const (
	headerTimeout = 2 * time.Minute // the provider reads a long prompt before the response begins
	idleTimeout   = 2 * time.Minute
	maxStream     = 128 << 20 // per response on the wire: about 200 bytes a token
	idlePerHost   = 64
)

// Registry makes the model clients of a node. They share its connections.
type Registry struct {
	c      Config
	hc     *http.Client
	rooms  rooms
	embeds *fair.Places // for large responses of providers of embeddings
}

// NewRegistry returns a Registry.
func NewRegistry(c Config) *Registry {
	c.OpenAI.Kind, c.Anthropic.Kind = OpenAI, Anthropic
	return &Registry{c: c, rooms: rooms{fair.New(longAll, longEach), fair.New(longestAll, longestEach)}, embeds: fair.New(embedAll, embedEach), hc: c.Guard.Client(egress.Options{
		RequireTLS:    c.RequireTLS,
		MaxBody:       maxStream,
		HeaderTimeout: headerTimeout,
		IdleTimeout:   idleTimeout,
		IdlePerHost:   idlePerHost,
	})}
}

// Builtin returns the provider that a manifest's model.provider names without a row of its
// own: simulated, openai or anthropic. For other names ok is false. A tenant's own provider
// with the same slug takes precedence.
func (r *Registry) Builtin(name string) (p Provider, ok bool) {
	switch name {
	case Simulated:
		return Provider{Kind: Simulated}, true
	case OpenAI:
		return r.c.OpenAI, true
	case Anthropic:
		return r.c.Anthropic, true
	}
	return Provider{}, false
}

// Configured reports whether the deployment has a provider of that name.
func (r *Registry) Configured(name string) bool {
	p, ok := r.Builtin(name)
	return ok && (p.Kind == Simulated || p.BaseURL != "" || p.APIKey != "")
}

// Client returns the client of a provider, the deployment's or a tenant's. It is cheap: make
// one for each turn and do not keep it, so that the key lives no longer than the turn. A turn
// that holds much waits for places in the turn of the tenant that its context names (turn.With), and
// ends with tool.Kept.
func (r *Registry) Client(p Provider) schema.Client {
	var c schema.Client
	switch {
	case p.Kind == Simulated:
		return counted{Simulated, simulated.Client{}}
	case p.Kind != OpenAI && p.Kind != Anthropic:
		return refusing("there is no model provider of this kind")
	case p.BaseURL == "" && p.APIKey == "":
		return refusing("the model provider " + p.Kind + " is not configured")
	case p.Kind == OpenAI:
		of := newOpenAI(r.hc, p)
		of.rooms, c = &r.rooms, of
	default:
		of := newAnthropic(r.hc, p)
		of.rooms, c = &r.rooms, of
	}
	return counted{p.Kind, &Retrying{Client: c, Sleep: r.c.Sleep, Rand: r.c.Rand}}
}

// Close closes idle connections; turns in progress continue.
func (r *Registry) Close() { r.hc.CloseIdleConnections() }

// refusing is a client whose turns fail with this message.
type refusing string

// Stream implements schema.Client.
func (s refusing) Stream(context.Context, *schema.Request, schema.Sink) (*schema.Result, error) {
	return nil, &schema.Error{Kind: schema.Refused, Message: string(s), BeforeFirstToken: true}
}
