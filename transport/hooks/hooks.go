package hooks

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"strings"
	"time"

	"agentsvc/persistence/store"
	"agentsvc/persistence/vault"
	"agentsvc/schemas/api"
	"agentsvc/schemas/id"
	"agentsvc/schemas/problem"
	"agentsvc/transport/edge"
	"agentsvc/transport/platform"
)

const (
	maxHooks = 1 << 12 // up to 64 KiB of input each
	hooksFor = 30 * time.Second
	// Unknown ids are cached briefly, so that repeated calls of one do not cost a look-up
	// each.
	maxAbsent = 1 << 14
	absentFor = 2 * time.Second
)

// Rows looks up enabled hooks; nil means none (store.Hooks).
type Rows interface {
	Find(ctx context.Context, g id.TriggerID) (*store.Hook, error)
}

// Firer starts the runs of triggers (platform.Platform).
type Firer interface {
	Fire(ctx context.Context, c *edge.Caller, f platform.Firing) (*api.RunStarted, error)
	Starts(ctx context.Context, t id.TenantID, target api.TriggerTarget) (bool, error)
}

// Config holds the dependencies of Hooks.
type Config struct {
	Rows Rows
	// Live reports whether this node still holds its lease; while it does not, the cache
	// counts as empty. nil means always.
	Live func() bool
	Now  func() time.Time
}

// Hooks is this node's cache of hooks. It implements platform.Hooks. Register adds the
// endpoint to a table.
type Hooks struct {
	rows   Rows
	known  *store.Cache[id.TriggerID, *store.Hook]
	absent *store.Cache[id.TriggerID, struct{}]
}

// New returns a Hooks with an empty cache.
func New(cfg Config) *Hooks {
	return &Hooks{
		rows:   cfg.Rows,
		known:  store.NewCache[id.TriggerID, *store.Hook](store.CacheConfig{Max: maxHooks, TTL: hooksFor, Now: cfg.Now, Live: cfg.Live}),
		absent: store.NewCache[id.TriggerID, struct{}](store.CacheConfig{Max: maxAbsent, TTL: absentFor, Now: cfg.Now, Live: cfg.Live}),
	}
}

// Forget implements platform.Hooks.
func (h *Hooks) Forget(g id.TriggerID) {
	h.known.Drop(g)
	h.absent.Drop(g)
}

// ForgetAll implements platform.Hooks.
func (h *Hooks) ForgetAll() {
	h.known.Clear()
	h.absent.Clear()
}

// find returns an enabled hook, nil for none. The look-up of the hook runs inside the look-up
// of the absent entry, so that a Forget in the meantime repeats both.
func (h *Hooks) find(ctx context.Context, g id.TriggerID) (*store.Hook, error) {
	if hook, ok := h.known.Get(g); ok {
		return hook, nil
	}
	var hook *store.Hook
	_, _, err := h.absent.Load(ctx, g, func(ctx context.Context) (none struct{}, gone bool, err error) {
		hook, _, err = h.known.Load(ctx, g, func(ctx context.Context) (*store.Hook, bool, error) {
			found, err := h.rows.Find(ctx, g)
			return found, found != nil, err
		})
		return none, hook == nil, err
	})
	return hook, err
}

// Register adds the endpoint. f starts the runs.
func (h *Hooks) Register(t *edge.Table, f Firer) {
	edge.HandleSigned(t, edge.Route{Method: "POST", Path: "/hooks/{trigger}", ID: "callHook", Tag: platform.TriggersTag, Status: 202, Idempotent: true,
		Summary: "Call a hook",
		Description: "Without a key: the raw body is signed with the trigger's secret, `X-Svc-Signature-256: sha256=<64 hex of its HMAC-SHA256>`; `X-Hub-Signature-256` is accepted too, so that a code host's webhook can point here unchanged. " +
			"The content type is ignored. The run's input is the trigger's, overridden by the body's fields. Within 24 hours a repeat with the same `Svc-Delivery-Id` or `X-GitHub-Delivery` is answered with the same run, " +
			"and one with the same `Idempotency-Key` too, if its body is the same.",
		Codes:   []problem.Code{problem.CodeInvalidSignature, problem.CodeInvalidBody, problem.CodeAgentNotPublished, problem.CodeWorkflowNotPublished, problem.CodeNotFound, problem.CodePayloadTooLarge, problem.CodeValidation},
		Example: map[string]any{"text": "Sort this issue.", "issue": 42}, Answer: api.RunStarted{RunID: id.RunID{UUID: id.UUID{0x01, 0xa1, 0xfe, 0x1a, 0xf0, 0xb8, 0x76, 0xf3, 0x94, 0x42, 0xf6, 0x22, 0x5b, 0xb3, 0xaf, 3}}},
		MediaType: "application/json", Params: []edge.HeaderField{
			{Name: signatureHeader, Description: "sha256= and the HMAC-SHA256 of the raw body under the trigger's secret, 64 hex digits. Required, unless X-Hub-Signature-256 is given."},
			{Name: hubSignatureHeader, Description: "The same, as code hosts name it; X-Svc-Signature-256 takes precedence."},
			{Name: "Svc-Delivery-Id", Description: "Names the delivery: within 24 hours a repeat is answered with the same run."},
			{Name: "X-GitHub-Delivery", Description: "The same, as code hosts name it; Svc-Delivery-Id takes precedence."},
		}}, endpoint{h, f})
}

// endpoint implements edge.Signed.
type endpoint struct {
	hooks *Hooks
	fire  Firer
}

// trigger parses the id in the path.
func trigger(in *edge.Raw) (id.TriggerID, bool) {
	u, err := id.Parse(in.Param("trigger"))
	return id.TriggerID{UUID: u}, err == nil
}

// Known implements edge.Signed. A call without a signature is refused before its body is
// read.
func (e endpoint) Known(in *edge.Raw) bool {
	g, ok := trigger(in)
	if ok {
		_, ok = e.hooks.known.Get(g)
	}
	return ok && signature(in) != nil
}

// unknown is the one answer for everything that is not found, so that callers cannot probe
// which triggers exist.
func unknown() error { return problem.New(problem.CodeNotFound, "There is no such hook.") }

// Verify implements edge.Signed.
func (e endpoint) Verify(ctx context.Context, in *edge.Raw) (edge.Identity, edge.SignedCall, error) {
	g, ok := trigger(in)
	if !ok {
		return edge.Identity{}, nil, unknown()
	}
	hook, err := e.hooks.find(ctx, g)
	if err != nil {
		return edge.Identity{}, nil, err
	}
	if hook == nil {
		return edge.Identity{}, nil, unknown()
	}
	// A hook whose target was archived counts as paused, even while it is cached.
	starts, err := e.fire.Starts(ctx, hook.Tenant, hook.Target)
	if err != nil {
		return edge.Identity{}, nil, err
	}
	if !starts {
		e.hooks.known.Drop(g) // cached as absent from now on, at the same cost
		return edge.Identity{}, nil, unknown()
	}
	if !signed(in, hook.Secret) {
		return edge.Identity{}, nil, problem.New(problem.CodeInvalidSignature, "The signature does not match the raw body.")
	}
	return edge.Identity{Tenant: hook.Tenant, Principal: "trigger:" + g.String()}, &call{hook, in, e.fire}, nil
}

// Header fields that may hold the signature; the first one present counts.
const (
	signatureHeader    = "X-Svc-Signature-256"
	hubSignatureHeader = "X-Hub-Signature-256"
	signatureScheme    = "sha256="
)

// signature returns the decoded signature of the call, nil if there is none or it is
// malformed.
func signature(in *edge.Raw) []byte {
	given := in.Header(signatureHeader)
	if given == "" {
		given = in.Header(hubSignatureHeader)
	}
	text, ok := strings.CutPrefix(given, signatureScheme)
	if !ok || len(text) != hex.EncodedLen(sha256.Size) {
		return nil
	}
	sum, err := hex.DecodeString(text)
	if err != nil {
		return nil
	}
	return sum
}

// signed reports whether the call's signature matches its raw body.
func signed(in *edge.Raw, secret vault.Secret) bool {
	sum := signature(in)
	if sum == nil {
		return false
	}
	mac := hmac.New(sha256.New, secret.Reveal())
	mac.Write(in.Body)
	return hmac.Equal(sum, mac.Sum(nil))
}

// call is a verified call.
type call struct {
	hook *store.Hook
	in   *edge.Raw
	fire Firer
}

// Check implements edge.SignedCall.
func (c *call) Check() error {
	if bad := c.in.Object(); bad != nil {
		return problem.New(problem.CodeInvalidBody, bad.Detail)
	}
	return nil
}

// Do implements edge.SignedCall.
func (c *call) Do(ctx context.Context, caller *edge.Caller) (any, error) {
	out, err := c.fire.Fire(ctx, caller, platform.Firing{Trigger: c.hook.ID, Target: c.hook.Target, Input: json.RawMessage(c.hook.Input), Over: c.in.Body, By: platform.FiredByHook})
	if errors.Is(err, problem.New(problem.CodeNotFound, "")) { // archived, which counts as paused
		return nil, unknown()
	}
	return out, err
}
