// Package id mints and parses the identifiers of the service.
//
// An id is a UUID of version 7 (service.md, Global conventions). Its rand_a
// field holds the time below the millisecond (RFC 9562, method 3), bumped so
// that the ids of one process strictly increase, and the first ten bits of
// rand_b hold a shard: a thread, its runs and their approvals are minted in one
// shard, so that any node can route by the id alone. An id is never a secret.
package id

import (
	"crypto/rand"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"hash/fnv"
	"sync"
	"time"
)

// Shards is the number of shards that ids are spread over.
const Shards = 1024

// Shard is the placement unit of an id, 0 <= Shard < Shards.
type Shard uint16

// UUID is the value under every typed id. Its text form is the lower-case
// canonical one.
type UUID [16]byte

// Typed ids. A bare string or UUID is never an id in a signature.
type (
	TenantID          struct{ UUID }
	UserID            struct{ UUID }
	KeyID             struct{ UUID }
	AgentID           struct{ UUID }
	NodeID            struct{ UUID } // an org node
	ProviderID        struct{ UUID }
	AttachmentID      struct{ UUID }
	ThreadID          struct{ UUID }
	MessageID         struct{ UUID }
	RunID             struct{ UUID }
	WorkflowID        struct{ UUID }
	ApprovalID        struct{ UUID }
	ServerID          struct{ UUID } // an MCP server
	ConnectionID      struct{ UUID }
	GrantID           struct{ UUID }
	PolicyID          struct{ UUID } // an approval policy
	SkillID           struct{ UUID } // a browser skill
	SkillRunID        struct{ UUID } // one run of a browser skill
	RecorderSessionID struct{ UUID } // a session in which a browser skill is recorded
	SessionID         struct{ UUID }
	EndUserID         struct{ UUID }
	WebhookID         struct{ UUID } // a webhook endpoint
	EventID           struct{ UUID } // one event, the same for all endpoints
	DeliveryID        struct{ UUID } // one event for one endpoint
	TriggerID         struct{ UUID }
	EmbedKeyID        struct{ UUID }
	VisitorID         struct{ UUID } // one browser, to one embed key
	UsageID           struct{ UUID }
	AuditID           struct{ UUID }
	MemberID          struct{ UUID } // one process of the cluster
	OpID              struct{ UUID } // one commit

	KnowledgeBaseID struct{ UUID }
	SourceID        struct{ UUID } // a source of a knowledge base
	DocumentID      struct{ UUID } // a document of a knowledge base
	ChunkID         struct{ UUID } // a piece of a document's text
	FileID          struct{ UUID } // one content of a document, in the store of files
	ArtifactID      struct{ UUID } // a file that a run made
)

// ErrMalformed is returned for text that is not a UUID.
var ErrMalformed = errors.New("not a UUID")

// Parse parses the 36-character text form, in either case.
func Parse(s string) (UUID, error) {
	var u UUID
	if err := u.UnmarshalText([]byte(s)); err != nil {
		return UUID{}, err
	}
	return u, nil
}

// IsZero reports whether u was never set.
func (u UUID) IsZero() bool { return u == UUID{} }

// Shard returns the shard of u. Ids that were not minted here are spread by hash, so that
// every UUID has a shard.
func (u UUID) Shard() Shard {
	if u[6]>>4 == 7 {
		return Shard(binary.BigEndian.Uint16(u[8:])&0x3fff) >> 4
	}
	h := fnv.New32a()
	h.Write(u[:])
	return Shard(h.Sum32() % Shards)
}

// ID returns the id that stands for the shard itself.
func (s Shard) ID() UUID {
	u := UUID{6: 7 << 4}
	binary.BigEndian.PutUint16(u[8:], 1<<15|uint16(s%Shards)<<4)
	return u
}

// Time returns the millisecond at which u was minted, by the minting node's clock.
func (u UUID) Time() time.Time {
	var b [8]byte
	copy(b[2:], u[:6])
	return time.UnixMilli(int64(binary.BigEndian.Uint64(b[:]))).UTC()
}

// At returns the least id of version 7 of the millisecond of t: ids minted before it are less, so
// a query from it on skips them. A time before 1970 counts as 1970.
func At(t time.Time) UUID {
	var u UUID
	binary.BigEndian.PutUint64(u[:], uint64(max(t.UnixMilli(), 0))<<16|7<<12)
	u[8] = 1 << 7
	return u
}

// String returns the canonical text form.
func (u UUID) String() string {
	var b [36]byte
	u.encode(b[:])
	return string(b[:])
}

// AppendText appends the canonical text form to b.
func (u UUID) AppendText(b []byte) ([]byte, error) {
	var t [36]byte
	u.encode(t[:])
	return append(b, t[:]...), nil
}

// MarshalText returns the canonical text form.
func (u UUID) MarshalText() ([]byte, error) { return u.AppendText(nil) }

func (u UUID) encode(b []byte) {
	hex.Encode(b, u[:4])
	b[8] = '-'
	hex.Encode(b[9:], u[4:6])
	b[13] = '-'
	hex.Encode(b[14:], u[6:8])
	b[18] = '-'
	hex.Encode(b[19:], u[8:10])
	b[23] = '-'
	hex.Encode(b[24:], u[10:])
}

// UnmarshalText parses the 36-character form; anything else is ErrMalformed and leaves u
// unchanged.
func (u *UUID) UnmarshalText(t []byte) error {
	if len(t) != 36 || t[8] != '-' || t[13] != '-' || t[18] != '-' || t[23] != '-' {
		return ErrMalformed
	}
	var hexed [32]byte
	n := copy(hexed[:], t[:8])
	n += copy(hexed[n:], t[9:13])
	n += copy(hexed[n:], t[14:18])
	n += copy(hexed[n:], t[19:23])
	copy(hexed[n:], t[24:])
	var out UUID
	if _, err := hex.Decode(out[:], hexed[:]); err != nil {
		return ErrMalformed
	}
	*u = out
	return nil
}

// Bytes16 and SetBytes16 are the methods by which the database driver reads and writes typed
// ids.
func (u UUID) Bytes16() [16]byte { return u }

// SetBytes16 sets u to the 16 bytes b.
func (u *UUID) SetBytes16(b [16]byte) { *u = b }

var clock struct {
	sync.Mutex
	last uint64 // milliseconds << 12 | fraction, of the last id minted
}

// New mints an id in shard s. Ids of one process strictly increase.
func New(s Shard) UUID {
	var u UUID
	rand.Read(u[8:])
	now := time.Now()
	ms, ns := uint64(now.UnixMilli()), uint64(now.Nanosecond()%int(time.Millisecond))
	tick := ms<<12 | ns*4096/uint64(time.Millisecond)
	clock.Lock()
	if tick <= clock.last {
		tick = clock.last + 1
	}
	clock.last = tick
	clock.Unlock()
	binary.BigEndian.PutUint64(u[:], tick>>12<<16|7<<12|tick&0xfff)
	low := binary.BigEndian.Uint16(u[8:])
	binary.BigEndian.PutUint16(u[8:], 1<<15|uint16(s%Shards)<<4|low&0xf)
	return u
}

// NewAnywhere mints an id for an object that no actor owns: its shard is random.
func NewAnywhere() UUID {
	var b [2]byte
	rand.Read(b[:])
	return New(Shard(binary.BigEndian.Uint16(b[:]) % Shards))
}
