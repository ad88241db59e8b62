package stream

import (
	"encoding/binary"

	"agentsvc/schemas/event"
	"agentsvc/schemas/id"
	"agentsvc/schemas/msg"
)

// maxMessage limits the messages to nodes that watch a run. Instead of a longer one they get
// opLeftOut.
const maxMessage = 64 << 10

// messageVersion is the version of a message's header.
const messageVersion = 1

// op is the type of a message.
type op byte

const (
	opFrame   op = 1 // the frame in the body was published
	opBegan   op = 2 // the live text of a step begins; the body is its number, its idx, and 1 if the relay gets the text
	opRested  op = 3 // the run has no publisher now
	opLeftOut op = 4 // a message was too long to send
)

// headLen is the length of a message's fixed header, without number and body.
const headLen = 2 + 16 + 16 + 8

// message is sent by a hub to the hubs that mirror it. The numbers of one feed start at 1 and
// have no gaps.
type message struct {
	op     op
	key    key
	feed   uint64
	number uint64
	body   []byte
}

// appendHead appends everything but the body.
func (m *message) appendHead(b []byte) []byte {
	b = append(b, messageVersion, byte(m.op))
	b = append(b, m.key.tenant.UUID[:]...)
	b = append(b, m.key.run.UUID[:]...)
	b = binary.BigEndian.AppendUint64(b, m.feed)
	return binary.AppendUvarint(b, m.number)
}

// readMessage parses a message; ok is false for another version. The body is part of b.
func readMessage(b []byte) (m message, ok bool) {
	if len(b) <= headLen || b[0] != messageVersion {
		return message{}, false
	}
	m.op = op(b[1])
	copy(m.key.tenant.UUID[:], b[2:])
	copy(m.key.run.UUID[:], b[18:])
	m.feed = binary.BigEndian.Uint64(b[34:])
	number, n := binary.Uvarint(b[headLen:])
	if n <= 0 || number == 0 {
		return message{}, false
	}
	m.number, m.body = number, b[headLen+n:]
	return m, true
}

// appendBegan and readBegan encode and decode the body of opBegan. A node of the version
// before the embed relay ends it after the idx. Without the last byte the text counts as
// withheld: a relay reader gets it later, in run.completed, and never before the output
// guardrails have seen it.
func appendBegan(b []byte, l *speech) []byte {
	b = binary.AppendUvarint(binary.AppendUvarint(b, uint64(l.seq)), uint64(l.idx))
	if l.relayed {
		return append(b, 1)
	}
	return append(b, 0)
}

func readBegan(b []byte) (l *speech, ok bool) {
	seq, n := binary.Uvarint(b)
	if n <= 0 || seq == 0 {
		return nil, false
	}
	idx, k := binary.Uvarint(b[n:])
	if k <= 0 {
		return nil, false
	}
	rest := b[n+k:]
	return &speech{seq: int64(seq), idx: int(idx), relayed: len(rest) > 0 && rest[0] == 1}, true
}

// Service is the name of the service that answers Watch (Hubs.ServeWatch).
const Service = "watch"

// Watch is a node's request about runs that it reads and another node publishes. The parts
// are handled in the order End, Begin, Renew.
type Watch struct {
	End   []uint64     `json:"end,omitempty"`   // feeds that it no longer reads
	Begin []WatchedRun `json:"begin,omitempty"` // runs that it reads from now on
	Renew []uint64     `json:"renew,omitempty"` // feeds that it still reads
}

// WatchedRun identifies a run.
type WatchedRun struct {
	Tenant id.TenantID `json:"tenant"`
	Run    id.RunID    `json:"run"`
}

// Watched is the answer to Watch.
type Watched struct {
	// Begun has the snapshots of the first runs of Begin; the others must be requested again.
	Begun []Snapshot `json:"begun,omitempty"`
	// Renewed has, for each of Renew, the number of its last message plus one, or 0 if the
	// feed no longer exists.
	Renewed []uint64 `json:"renewed,omitempty"`
}

// Snapshot is the state of a run's hub at one moment: everything later is sent as the
// messages of Feed after Number.
type Snapshot struct {
	Feed   uint64    `json:"feed"`
	Number uint64    `json:"number"`
	Owned  bool      `json:"owned,omitempty"` // the run has a publisher
	Pos    event.Pos `json:"pos"`
	Live   *LiveStep `json:"live,omitempty"`
}

// LiveStep is a step in progress.
type LiveStep struct {
	Seq      int64   `json:"seq"`
	Idx      int     `json:"idx"`
	Said     []byte  `json:"said,omitempty"`
	Segments []int32 `json:"segments,omitempty"`
	// Relayed says that the relay gets the text. As in opBegan, it counts as withheld unless
	// the node says so.
	Relayed bool `json:"relayed,omitempty"`
}

// AddTo registers Watch and its answer for transport between nodes.
func AddTo(c *msg.Codec) {
	c.Add("watch", Watch{})
	c.Add("watched", Watched{})
}
