package remote

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rs/zerolog"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/keepalive"

	"agentsvc/cluster"
	"agentsvc/cluster/remote/wire"
	"agentsvc/schemas/id"
	"agentsvc/schemas/msg"
	"agentsvc/schemas/problem"
)

// Node is the part of cluster.Node that Remote uses.
type Node interface {
	Receive(a cluster.Address, msg any, until time.Time, reply func(any))
	ReceiveTold(a cluster.Address, msg any) error
	Served(ctx context.Context, from id.MemberID, service string, msg any) (any, error)
}

// Config holds the settings of a Remote. Self, Listen, Secret and Codec are required.
type Config struct {
	Self   id.MemberID
	Build  string // shown in the other side's log
	Listen net.Listener
	Secret string // at least MinSecret characters, the same on all members
	Codec  *msg.Codec
	Log    zerolog.Logger
	// OnRefused is called each time a member is found not to be at its address: its port
	// refuses connections, or another member answers there. It must not block.
	OnRefused func(id.MemberID)
	// Beat is the interval of signs of life on a stream; two and a half beats of silence
	// break it. Default 1 s. All members should have the same.
	Beat time.Duration
}

// Remote holds this member's side of its streams to and from the others.
type Remote struct {
	cfg    Config
	log    zerolog.Logger
	codec  *msg.Codec
	client credentials.TransportCredentials
	server *grpc.Server
	listen *boundedListener
	served chan error // result of the server's loop
	links  atomic.Uint64

	node   atomic.Pointer[Node]
	ctx    context.Context // ends with Stop
	cancel context.CancelFunc
	wg     sync.WaitGroup // of peers' loops, sessions' goroutines and calls

	warned sometimes

	mu       sync.RWMutex // guards the fields below; never taken under a peer's or a session's
	peers    map[id.MemberID]*peer
	sessions map[id.MemberID]*session // the newest session of each member
	state    int
}

const (
	stateNew = iota
	stateRunning
	stateDraining // answers requests in progress, sends what is queued, accepts nothing new
	stateStopped
)

var (
	_ cluster.Peers = (*Remote)(nil)
	_ Node          = (*cluster.Node)(nil)

	errStopping = problem.Unavailable("The node is stopping.", time.Second)
	errFull     = problem.Unavailable("Too many messages wait for another node.", time.Second)
)

// goodbyeTimeout limits writing the last answers.
const goodbyeTimeout = 500 * time.Millisecond

// maxConnections limits the connections of strangers: a connection costs memory before its
// other side has proved to be a member.
const maxConnections = 1024

// New returns a Remote that neither serves nor sends yet.
func New(cfg Config) (*Remote, error) {
	if cfg.Self.IsZero() || cfg.Listen == nil || cfg.Codec == nil {
		return nil, errors.New("remote: Self, Listen and Codec are required")
	}
	if cfg.OnRefused == nil {
		cfg.OnRefused = func(id.MemberID) {}
	}
	if cfg.Beat <= 0 {
		cfg.Beat = time.Second
	}
	server, client, err := configs(cfg.Secret)
	if err != nil {
		return nil, err
	}
	r := &Remote{
		cfg: cfg, log: cfg.Log, codec: cfg.Codec, listen: &boundedListener{Listener: cfg.Listen, open: map[net.Conn]struct{}{}}, client: credentials.NewTLS(client), served: make(chan error, 1),
		peers: map[id.MemberID]*peer{}, sessions: map[id.MemberID]*session{},
	}
	r.ctx, r.cancel = context.WithCancel(context.Background())
	r.server = grpc.NewServer(
		grpc.Creds(credentials.NewTLS(server)),
		grpc.ConnectionTimeout(handshakeTimeout),
		grpc.MaxRecvMsgSize(maxFrame), grpc.MaxSendMsgSize(maxFrame),
		grpc.MaxConcurrentStreams(1), // a member has one stream per connection
		grpc.MaxHeaderListSize(8<<10),
		grpc.InitialWindowSize(window), grpc.InitialConnWindowSize(window),
		// A member that does not answer for four beats is gone; its own side notices by the
		// missing beats. (gRPC's minimum is one second.)
		grpc.KeepaliveParams(keepalive.ServerParameters{Time: 2 * cfg.Beat, Timeout: 2 * cfg.Beat}),
		grpc.WaitForHandlers(true),
	)
	wire.RegisterPeerServer(r.server, &service{remote: r})
	return r, nil
}

// Start passes messages of other members to node. ctx bounds nothing afterwards.
func (r *Remote) Start(_ context.Context, node Node) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.state != stateNew {
		return errors.New("remote: started before")
	}
	r.state = stateRunning
	r.node.Store(&node)
	go func() { r.served <- r.server.Serve(r.listen) }()
	return nil
}

// Stop ends all streams. Until ctx ends it first answers requests in progress, sends queued
// Tells to members that can be reached, and refuses everything new. Callers still waiting for
// an answer then get ErrLost. Stop the Node first: the messages that it forwards while
// draining leave through the Remote.
func (r *Remote) Stop(ctx context.Context) error {
	r.mu.Lock()
	if r.state >= stateDraining {
		r.mu.Unlock()
		return nil
	}
	started := r.state == stateRunning
	r.state = stateDraining
	r.mu.Unlock()

	err := r.drain(ctx)
	r.mu.Lock()
	r.state = stateStopped
	peers, sessions := r.peers, r.sessions
	r.peers, r.sessions = map[id.MemberID]*peer{}, map[id.MemberID]*session{}
	r.mu.Unlock()
	for _, p := range peers {
		p.leave()
	}
	for _, s := range sessions {
		s.end(nil)
	}
	stopped := make(chan struct{})
	go func() { r.server.GracefulStop(); close(stopped) }()
	// The last answers are being written. Do not wait for connections that have not proved to
	// be a member's.
	goodbye, cancel := context.WithTimeout(ctx, goodbyeTimeout)
	defer cancel()
	select {
	case <-stopped:
	case <-goodbye.Done():
		r.listen.cut(func(net.Conn) bool { return true })
		r.server.Stop()
		<-stopped
	}
	r.cancel()
	if started {
		<-r.served
	} else {
		_ = r.cfg.Listen.Close() // not closed elsewhere; an error would change nothing
	}
	r.wg.Wait()
	return err
}

// drain waits until nothing is outstanding to any reachable member.
func (r *Remote) drain(ctx context.Context) error {
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for finishing := false; ; {
		for r.owes() {
			select {
			case <-ctx.Done():
				return fmt.Errorf("remote: answer what other members asked: %w", ctx.Err())
			case <-tick.C:
			}
		}
		if finishing {
			return nil
		}
		finishing = true
		r.mu.RLock()
		for _, p := range r.peers {
			p.finish()
		}
		r.mu.RUnlock()
	}
}

func (r *Remote) owes() bool {
	r.mu.RLock()
	defer r.mu.RUnlock()
	for _, p := range r.peers {
		if p.owes() {
			return true
		}
	}
	for _, s := range r.sessions {
		if s.owes() {
			return true
		}
	}
	return false
}

// SetPeers sets the members and their addresses. Streams to members that are no longer listed
// end at once, and so does waiting for their answers. This member's own entry is ignored.
func (r *Remote) SetPeers(members map[id.MemberID]string) {
	var gone []*peer
	r.mu.Lock()
	if r.state < stateStopped {
		for m, p := range r.peers {
			if addr, ok := members[m]; !ok || addr != p.addr {
				delete(r.peers, m)
				gone = append(gone, p)
			}
		}
		for m, addr := range members {
			if m != r.cfg.Self && r.peers[m] == nil {
				r.peers[m] = newPeer(r, m, addr)
			}
		}
	}
	r.mu.Unlock()
	for _, p := range gone {
		p.leave()
	}
}

// peer returns the member's peer, or an error for the sender.
func (r *Remote) peer(to id.MemberID) (*peer, error) {
	r.mu.RLock()
	defer r.mu.RUnlock()
	if r.state >= stateStopped {
		return nil, errStopping
	}
	if p := r.peers[to]; p != nil {
		return p, nil
	}
	return nil, cluster.ErrUnknownMember
}

// Ask implements cluster.Peers. If ctx has no deadline it waits for cluster.DefaultTimeout.
func (r *Remote) Ask(ctx context.Context, to id.MemberID, a cluster.Address, m any) (any, error) {
	asksTotal.Inc()
	return r.ask(ctx, to, m, &wire.Envelope{Kind: wire.Kind_ASK, Address: wireAddress(a)})
}

// Call implements cluster.Peers, with Ask's deadline.
func (r *Remote) Call(ctx context.Context, to id.MemberID, service string, m any) (any, error) {
	callsTotal.Inc()
	return r.ask(ctx, to, m, &wire.Envelope{Kind: wire.Kind_CALL, Service: service})
}

func (r *Remote) ask(ctx context.Context, to id.MemberID, m any, e *wire.Envelope) (any, error) {
	p, err := r.peer(to)
	if err != nil {
		return nil, err
	}
	if e.Type, e.Body, err = r.encode(m); err != nil {
		return nil, fmt.Errorf("encode a message: %w", err)
	}
	until, ok := ctx.Deadline()
	if !ok {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, cluster.DefaultTimeout)
		defer cancel()
		until, _ = ctx.Deadline()
	}
	w := &waiter{until: until, out: make(chan answer, 1)}
	if err := p.enqueue(e, w); err != nil {
		return nil, err
	}
	select {
	case a := <-w.out:
		if a.err != nil {
			return nil, a.err
		}
		v, err := r.decode(a.reply.Type, a.reply.Body)
		if err != nil {
			return nil, fmt.Errorf("decode an answer: %w", err)
		}
		if e, ok := v.(error); ok {
			return nil, e
		}
		return v, nil
	case <-ctx.Done():
		p.forget(w)
		return nil, ctx.Err()
	}
}

// Tell implements cluster.Peers. An error means that m will not be sent.
func (r *Remote) Tell(to id.MemberID, a cluster.Address, m any) error {
	tellsTotal.Inc()
	p, err := r.peer(to)
	if err != nil {
		return err
	}
	e := &wire.Envelope{Kind: wire.Kind_TELL, Address: wireAddress(a)}
	if e.Type, e.Body, err = r.encode(m); err != nil {
		return fmt.Errorf("encode a message: %w", err)
	}
	err = p.enqueue(e, nil)
	if errors.Is(err, errFull) {
		droppedFull.Inc()
		if r.warned.now() {
			r.log.Warn().Err(err).Stringer("peer", to).Msg("messages to a member are dropped")
		}
	}
	return err
}

// sometimes limits how often a frequent event is logged.
type sometimes struct{ last atomic.Int64 }

// now reports whether ten seconds have passed since it last returned true.
func (s *sometimes) now() bool {
	now, last := time.Now().Unix(), s.last.Load()
	return now-last >= 10 && s.last.CompareAndSwap(last, now)
}

// boundedListener closes new connections while maxConnections are open.
type boundedListener struct {
	net.Listener

	mu   sync.Mutex // guards open
	open map[net.Conn]struct{}
}

// Accept implements net.Listener.
func (l *boundedListener) Accept() (net.Conn, error) {
	for {
		c, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		l.mu.Lock()
		room := len(l.open) < maxConnections
		if room {
			l.open[c] = struct{}{}
		}
		l.mu.Unlock()
		if room {
			return &boundedConn{c, l}, nil
		}
		_ = c.Close() // a stranger's connection gets no answer
	}
}

// cut closes the connections that match.
func (l *boundedListener) cut(meant func(net.Conn) bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for c := range l.open {
		if meant(c) {
			_ = c.Close() // its owner closes it again and checks the error
		}
	}
}

type boundedConn struct {
	net.Conn
	l *boundedListener
}

// Close implements net.Conn.
func (c *boundedConn) Close() error {
	c.l.mu.Lock()
	delete(c.l.open, c.Conn)
	c.l.mu.Unlock()
	return c.Conn.Close()
}
