package remote

import (
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

// The protocol that this process speaks. Members of one major version understand
// each other.
const (
	protocolMajor = 2
	protocolMinor = 0
)

// Bounds. They are part of what doc.go promises.
const (
	maxBody       = 32 << 20
	maxBatch      = 64
	maxBatchBytes = 1 << 20
	maxFrame      = maxBody + 1<<20 // of gRPC: one body and what is around it
	maxQueued     = 1 << 16
	maxQueuedSize = 64 << 20
	maxCalls      = 256
	maxCallsWait  = 4096
)

// overhead is about what an envelope weighs beside its body.
const overhead = 128

// ErrTooLarge says that a message or an answer is larger than a frame may be.
var ErrTooLarge = fmt.Errorf("remote: a message has more than %d bytes", maxBody)

// crossing are the errors of the layers below the codec that the other side
// compares. ErrUnknownMember and ErrLost are not among them: they are said of one's
// own stream only.
var crossing = map[string]error{
	"cluster/moved":        cluster.ErrMoved,
	"cluster/not_owner":    cluster.ErrNotOwner,
	"cluster/unknown_kind": cluster.ErrUnknownKind,
	"cluster/panicked":     cluster.ErrPanicked,
	"cluster/unknown_type": msg.ErrUnknownType,
	"cluster/too_large":    ErrTooLarge,
}

// said is an error of crossing with what the other side said of it.
type said struct {
	text string
	is   error
}

func (e *said) Error() string { return e.text }
func (e *said) Unwrap() error { return e.is }

// encode is the codec's Encode with the errors of crossing and the bound of a body.
func (r *Remote) encode(v any) (name string, body []byte, err error) {
	defer func() {
		if p := recover(); p != nil { // a MarshalCBOR of the message's own
			r.log.Error().Interface("panic", p).Bytes("stack", debug.Stack()).Msg("message could not be encoded")
			name, body, err = "", nil, cluster.ErrPanicked
		}
	}()
	if e, ok := v.(error); ok {
		// A problem is the codec's: it says more.
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

// decode undoes encode. A panic of a message's UnmarshalCBOR is an error.
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

// reply is the envelope that answers one with id n.
func (r *Remote) reply(n uint64, v any) *wire.Envelope {
	name, body, err := r.encode(v)
	if err != nil {
		// Errors of this kind are short texts: they can always be encoded.
		name, body, _ = r.encode(fmt.Errorf("encode the answer: %w", err))
	}
	return &wire.Envelope{Id: n, Kind: wire.Kind_REPLY, Type: name, Body: body}
}

func wireAddress(a cluster.Address) *wire.Address {
	return &wire.Address{Kind: a.Kind, Tenant: a.Tenant.UUID[:], Id: a.ID[:]}
}

// address reads what wireAddress wrote.
func address(w *wire.Address) (a cluster.Address, ok bool) {
	tenant, okTenant := uuid(w.GetTenant())
	entity, okEntity := uuid(w.GetId())
	return cluster.Address{Kind: w.GetKind(), Tenant: id.TenantID{UUID: tenant}, ID: entity}, okTenant && okEntity && w.GetKind() != ""
}

func uuid(b []byte) (u id.UUID, ok bool) {
	copy(u[:], b)
	return u, len(b) == len(u)
}

// remaining is d in whole milliseconds, not less.
func remaining(d time.Duration) uint64 {
	return uint64(max(0, (d+time.Millisecond-1)/time.Millisecond))
}

// deadline is when an asker gives up that does so in ms milliseconds.
func deadline(now time.Time, ms uint64) time.Time {
	const most = uint64(time.Hour / time.Millisecond)
	return now.Add(time.Duration(min(ms, most)) * time.Millisecond)
}

func size(e *wire.Envelope) int { return len(e.Body) + len(e.Type) + overhead }
