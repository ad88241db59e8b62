package remote

import (
	"context"
	"errors"
	"io"
	"net"
	"runtime/debug"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	grpcpeer "google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"

	"agentsvc/cluster"
	"agentsvc/cluster/remote/wire"
	"agentsvc/schemas/id"
	"agentsvc/schemas/msg"
)

// errEOF is what gRPC's Send returns when the stream is over; Recv returns the reason.
var errEOF = io.EOF

// service is the gRPC server of a Remote.
type service struct {
	wire.UnimplementedPeerServer
	remote *Remote
}

// session is one stream from another member.
type session struct {
	r      *Remote
	from   id.MemberID
	number uint64
	addr   string          // address of the other side
	ctx    context.Context // ends with the session
	cancel context.CancelFunc
	wake   chan struct{}

	receiving sync.Mutex // held while a batch is passed to the node; guards cut
	cut       bool       // nothing more is passed on

	mu      sync.Mutex // guards the fields below; taken under locks of the node
	out     []*wire.Envelope
	outSize int
	sending bool
	pending int // requests without an answer
	calls   int // goroutines
	waiting []func()
	over    bool
	why     error
}

// Link serves a stream until it breaks, a newer one of the same member arrives, or the Remote
// stops.
func (v *service) Link(stream grpc.BidiStreamingServer[wire.Batch, wire.Batch]) error {
	r := v.remote
	first, err := stream.Recv()
	if err != nil {
		return err
	}
	hello := first.GetHello()
	from, okFrom := uuid(hello.GetFrom())
	to, okTo := uuid(hello.GetTo())
	switch {
	case !okFrom || !okTo:
		return status.Error(codes.InvalidArgument, "the first frame is not a hello")
	case hello.Major != protocolMajor:
		if r.warned.now() {
			r.log.Warn().Stringer("from", id.MemberID{UUID: from}).Str("build", hello.Build).Uint32("protocol", hello.Major).Msg("a member speaks another protocol")
		}
		return status.Error(codes.FailedPrecondition, "another protocol")
	case to != r.cfg.Self.UUID:
		return status.Error(codes.NotFound, "another member") // errElsewhere
	}
	s := &session{r: r, from: id.MemberID{UUID: from}, number: hello.Number, wake: make(chan struct{}, 1)}
	if other, ok := grpcpeer.FromContext(stream.Context()); ok {
		s.addr = other.Addr.String()
	}
	s.ctx, s.cancel = context.WithCancel(stream.Context())
	defer s.cancel()
	if !r.open(s) {
		return status.Error(codes.Unavailable, "the stream is not the newest, or the member is stopping")
	}
	defer r.close(s)
	r.log.Debug().Stringer("from", s.from).Str("build", hello.Build).Msg("a member's stream begins")
	err = stream.Send(&wire.Batch{Hello: &wire.Hello{
		From: r.cfg.Self.UUID[:], To: from[:], Major: protocolMajor, Minor: protocolMinor, Build: r.cfg.Build,
	}})
	if err != nil {
		s.end(err)
	}
	go s.receive(stream)
	return s.send(stream)
}

// open makes s the session of its member. After it, nothing that earlier sessions received is
// passed to the node, so that the order holds.
func (r *Remote) open(s *session) bool {
	r.mu.Lock()
	former := r.sessions[s.from]
	if r.state != stateRunning || former != nil && former.number >= s.number {
		r.mu.Unlock()
		return false
	}
	s.receiving.Lock() // a session that replaces s meanwhile waits for its predecessors too
	defer s.receiving.Unlock()
	r.sessions[s.from] = s
	r.wg.Add(1) // for receive
	r.mu.Unlock()
	if former != nil {
		former.end(status.Error(codes.Aborted, "a newer stream"))
	}
	return true
}

func (r *Remote) close(s *session) {
	s.end(nil)
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.sessions[s.from] == s {
		delete(r.sessions, s.from)
	}
}

// end ends the session with a reason for its member. Queued replies are still sent.
func (s *session) end(why error) {
	s.receiving.Lock()
	s.cut = true
	s.receiving.Unlock()
	s.mu.Lock()
	if !s.over {
		s.over, s.why = true, why
		s.waiting = nil
	}
	s.mu.Unlock()
	s.nudge()
}

func (s *session) nudge() {
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// owes reports whether an answer is outstanding.
func (s *session) owes() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return !s.over && (s.pending > 0 || len(s.out) > 0 || s.sending)
}

// send sends what is queued, and a sign of life with each beat.
func (s *session) send(stream grpc.BidiStreamingServer[wire.Batch, wire.Batch]) error {
	beat := time.NewTicker(s.r.cfg.Beat)
	defer beat.Stop()
	batch := &wire.Batch{}
	for {
		over, why := s.take(batch)
		if len(batch.Envelopes) == 0 {
			if over {
				return why
			}
			select {
			case <-s.wake:
				continue
			case <-s.ctx.Done():
				return s.ctx.Err()
			case <-beat.C:
			}
		} else {
			batchSizes.Observe(float64(len(batch.Envelopes)))
		}
		if err := stream.Send(batch); err != nil {
			return err
		}
	}
}

func (s *session) take(b *wire.Batch) (over bool, why error) {
	clear(b.Envelopes)
	b.Envelopes = b.Envelopes[:0]
	s.mu.Lock()
	defer s.mu.Unlock()
	bytes, n := 0, 0
	for _, e := range s.out {
		if n == maxBatch || n > 0 && bytes+size(e) > maxBatchBytes {
			break
		}
		n++
		bytes += size(e)
		b.Envelopes = append(b.Envelopes, e)
	}
	clear(s.out[:n])
	s.outSize -= bytes
	if s.out = s.out[n:]; len(s.out) == 0 {
		s.out = nil
	}
	s.sending = n > 0
	return s.over, s.why
}

// answer queues the reply to message n. It does not block.
func (s *session) answer(n uint64, v any) {
	e := s.r.reply(n, v)
	s.mu.Lock()
	s.pending--
	full := false
	if !s.over {
		s.out = append(s.out, e)
		s.outSize += size(e)
		full = len(s.out) > maxQueued || s.outSize > maxQueuedSize+maxBody
		if full { // the member does not read: its side fails and retries
			s.over, s.why = true, status.Error(codes.ResourceExhausted, "the member does not read its answers")
			s.out, s.outSize = nil, 0
		}
	}
	s.mu.Unlock()
	s.nudge()
	if full { // the batch being sent could wait for the member indefinitely
		s.r.listen.cut(func(c net.Conn) bool { return c.RemoteAddr().String() == s.addr })
	}
}

// admit counts a message that needs an answer.
func (s *session) admit() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.pending++
	return s.pending <= maxQueued
}

func (s *session) receive(stream grpc.BidiStreamingServer[wire.Batch, wire.Batch]) {
	defer s.r.wg.Done()
	for {
		b, err := stream.Recv()
		if err != nil {
			if errors.Is(err, io.EOF) {
				err = nil
			}
			s.end(err)
			s.cancel()
			return
		}
		if !s.hand(b) {
			return
		}
	}
}

// hand passes a batch to the node. It returns false when the session is over.
func (s *session) hand(b *wire.Batch) bool {
	s.receiving.Lock()
	defer s.receiving.Unlock()
	now := time.Now()
	for _, e := range b.Envelopes {
		if s.cut {
			return false
		}
		if !s.one(e, now) {
			s.cut = true
			s.mu.Lock()
			s.over, s.why = true, status.Error(codes.InvalidArgument, "a malformed envelope")
			s.mu.Unlock()
			s.nudge()
			return false
		}
	}
	return true
}

// one handles one envelope; false means that it is malformed.
func (s *session) one(e *wire.Envelope, now time.Time) (ok bool) {
	node := *s.r.node.Load()
	answered := e.Kind != wire.Kind_ASK && e.Kind != wire.Kind_CALL
	defer func() {
		if p := recover(); p != nil {
			s.r.log.Error().Str("type", e.Type).Interface("panic", p).Bytes("stack", debug.Stack()).Msg("message from a member panicked")
			if !answered {
				s.answer(e.Id, cluster.ErrPanicked)
			}
			ok = true
		}
	}()
	switch e.Kind {
	case wire.Kind_TELL:
		a, ok := address(e.Address)
		if !ok {
			return false
		}
		m, err := s.r.decode(e.Type, e.Body)
		if err != nil {
			droppedUnread.Inc()
			s.warn(err)
			return true
		}
		if err := node.ReceiveTold(a, m); err != nil {
			droppedNotTaken.Inc()
			s.r.log.Debug().Err(err).Str("kind", a.Kind).Stringer("from", s.from).Msg("told message dropped")
		}
		return true
	case wire.Kind_ASK, wire.Kind_CALL:
		a, ok := address(e.Address)
		if e.Id == 0 || e.Kind == wire.Kind_ASK && !ok || e.Kind == wire.Kind_CALL && e.Service == "" {
			answered = true // by the end of the stream
			return false
		}
		if !s.admit() {
			answered = true
			s.answer(e.Id, errFull)
			return true
		}
		m, err := s.r.decode(e.Type, e.Body)
		if err != nil {
			if errors.Is(err, msg.ErrUnknownType) {
				s.warn(err)
			}
			answered = true
			s.answer(e.Id, err)
			return true
		}
		until := deadline(now, e.RemainingMs)
		answered = true // from here on the node always answers
		if e.Kind == wire.Kind_CALL {
			s.call(e.Id, e.Service, m, until)
			return true
		}
		node.Receive(a, m, until, func(v any) { s.answer(e.Id, v) })
		return true
	default: // from a later version
		if e.Id != 0 && e.Kind != wire.Kind_REPLY {
			s.admit()
			s.answer(e.Id, errors.New("remote: unknown kind of message"))
		}
		return true
	}
}

func (s *session) warn(err error) {
	if s.r.warned.now() {
		s.r.log.Warn().Err(err).Stringer("from", s.from).Msg("a member's message cannot be read")
	}
}

// call runs a service in one of the session's goroutines.
func (s *session) call(n uint64, service string, m any, until time.Time) {
	job := func() {
		ctx, cancel := context.WithDeadline(s.ctx, until)
		defer cancel()
		if ctx.Err() != nil {
			s.answer(n, ctx.Err())
			return
		}
		s.answer(n, s.served(ctx, service, m))
	}
	s.mu.Lock()
	switch {
	case s.over:
		s.pending--
		s.mu.Unlock()
	case s.calls < maxCalls:
		s.calls++
		s.r.wg.Add(1)
		s.mu.Unlock()
		go s.work(job)
	case len(s.waiting) < maxCallsWait:
		s.waiting = append(s.waiting, job)
		s.mu.Unlock()
	default:
		s.mu.Unlock()
		s.answer(n, errFull)
	}
}

// served returns the node's answer; a panic becomes an error.
func (s *session) served(ctx context.Context, service string, m any) (reply any) {
	defer func() {
		if p := recover(); p != nil {
			s.r.log.Error().Str("service", service).Interface("panic", p).Bytes("stack", debug.Stack()).Msg("call from a member panicked")
			reply = cluster.ErrPanicked
		}
	}()
	v, err := (*s.r.node.Load()).Served(ctx, s.from, service, m)
	if err != nil {
		return err
	}
	return v
}

func (s *session) work(job func()) {
	defer s.r.wg.Done()
	for job != nil {
		job()
		s.mu.Lock()
		if job = nil; len(s.waiting) > 0 {
			job, s.waiting = s.waiting[0], s.waiting[1:]
		} else {
			s.calls--
		}
		s.mu.Unlock()
	}
}
