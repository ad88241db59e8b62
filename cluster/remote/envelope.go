package remote

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"time"

	"agentsvc/cluster"
	"agentsvc/cluster/remote/wire"
	"agentsvc/schemas/id"
	"agentsvc/schemas/msg"
	"agentsvc/schemas/problem"
)

// Version of the protocol. Members with the same major version are compatible.
const (
	protocolMajor = 2
	protocolMinor = 0
)

// Limits, as promised in doc.go.
const (
	maxBody       = 32 << 20
	maxBatch      = 64
	maxBatchBytes = 1 << 20
	maxFrame      = maxBody + 1<<20 // of gRPC: one body and its envelope
	maxQueued     = 1 << 16
	maxQueuedSize = 64 << 20
	maxCalls      = 256
	maxCallsWait  = 4096
)

// overhead is the approximate size of an envelope without its body.
const overhead = 128

// ErrTooLarge means that a message or an answer exceeds the size of a frame.
var ErrTooLarge = fmt.Errorf("remote: a message has more than %d bytes", maxBody)

// crossing holds the errors of lower layers that callers on other nodes compare.
// ErrUnknownMember and ErrLost are not included: they concern only a node's own stream.
var crossing = map[string]error{
	"cluster/moved":        cluster.ErrMoved,
	"cluster/not_owner":    cluster.ErrNotOwner,
	"cluster/unknown_kind": cluster.ErrUnknownKind,
	"cluster/panicked":     cluster.ErrPanicked,
	"cluster/unknown_type": msg.ErrUnknownType,
	"cluster/too_large":    ErrTooLarge,
	"cluster/late":         context.DeadlineExceeded, // the other node's clock may pass a deadline first
}

// said is an error of crossing with the other side's text.
type said struct {
	text string
	is   error
}

func (e *said) Error() string { return e.text }
func (e *said) Unwrap() error { return e.is }

// encode encodes v with the codec, maps the errors of crossing, and limits the body.
func (r *Remote) encode(v any) (name string, body []byte, err error) {
	defer func() {
		if p := recover(); p != nil { // a panic in the message's MarshalCBOR
			r.log.Error().Interface("panic", p).Bytes("stack", debug.Stack()).Msg("message could not be encoded")
			name, body, err = "", nil, cluster.ErrPanicked
		}
	}()
	if e, ok := v.(error); ok {
		// A problem is encoded by the codec: it has more detail.
		if p := (*problem.Error)(nil); !errors.As(e, &p) {
			for name, known := range crossing {
				if errors.Is(e, known) {
					return name, []byte(e.Error()), nil
				}
			}
		}
	}
	if name, body, err = r.codec.Encode(v); err == nil && len(body) > maxBody {
		return "", nil, fmt.Errorf("%w: %s has %d", ErrTooLarge, name, len(body))
	}
	return name, body, err
}

// decode decodes a body. A panic in a message's UnmarshalCBOR becomes an error.
func (r *Remote) decode(name string, body []byte) (v any, err error) {
	defer func() {
		if p := recover(); p != nil {
			r.log.Error().Str("type", name).Interface("panic", p).Bytes("stack", debug.Stack()).Msg("message could not be decoded")
			v, err = nil, cluster.ErrPanicked
		}
	}()
	if known, ok := crossing[name]; ok {
		if text := string(body); text != "" && text != known.Error() {
			return &said{text, known}, nil
		}
		return known, nil
	}
	return r.codec.Decode(name, body)
}

// reply returns the envelope that answers message n.
func (r *Remote) reply(n uint64, v any) *wire.Envelope {
	name, body, err := r.encode(v)
	if err != nil {
		// Such errors are short texts: they can always be encoded.
		name, body, _ = r.encode(fmt.Errorf("encode the answer: %w", err))
	}
	return &wire.Envelope{Id: n, Kind: wire.Kind_REPLY, Type: name, Body: body}
}

func wireAddress(a cluster.Address) *wire.Address {
	return &wire.Address{Kind: a.Kind, Tenant: a.Tenant.UUID[:], Id: a.ID[:]}
}

// address decodes the result of wireAddress.
func address(w *wire.Address) (a cluster.Address, ok bool) {
	tenant, okTenant := uuid(w.GetTenant())
	entity, okEntity := uuid(w.GetId())
	return cluster.Address{Kind: w.GetKind(), Tenant: id.TenantID{UUID: tenant}, ID: entity}, okTenant && okEntity && w.GetKind() != ""
}

func uuid(b []byte) (u id.UUID, ok bool) {
	copy(u[:], b)
	return u, len(b) == len(u)
}

// remaining returns d in milliseconds, rounded up.
func remaining(d time.Duration) uint64 {
	return uint64(max(0, (d+time.Millisecond-1)/time.Millisecond))
}

// deadline returns when the asker gives up, ms milliseconds from now.
func deadline(now time.Time, ms uint64) time.Time {
	const most = uint64(time.Hour / time.Millisecond)
	return now.Add(time.Duration(min(ms, most)) * time.Millisecond)
}

func size(e *wire.Envelope) int { return len(e.Body) + len(e.Type) + overhead }
