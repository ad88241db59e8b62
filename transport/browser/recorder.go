package browser

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"agentsvc/schemas/id"
	"agentsvc/schemas/msg"
	"agentsvc/schemas/problem"
	"agentsvc/schemas/skill"
)

// RecorderService is the service of a node that answers msg.Record.
const RecorderService = "recorder"

// Limits of recorder sessions.
const (
	recorderIdle    = 15 * time.Minute // open-parts.md, Browser skills
	recorderLongest = time.Hour
	recorderKept    = time.Hour       // an ended session, for the skill that is saved
	recorderPages   = 3               // live sessions of a node, beside those of runs
	recorderEnded   = 100             // sessions that have ended and are kept, of a node
	recorderTenant  = 10              // of one tenant
	recorderEach    = 3               // of one principal
	recorderTaking  = time.Minute     // while a skill is made of a session, no second one is
	recorderActions = 4               // actions of one session that wait for their turn
	recorderKeys    = 16              // answers to actions that are kept for a repetition
	recorderAgain   = 5 * time.Second // a repetition of a start waits for the first (open-parts.md)
	recorderLook    = 10 * time.Second
	shotEvery       = 250 * time.Millisecond // at most four pictures in a second
	shotIdle        = time.Second            // of a page on which nothing changes
	shotsKept       = 4
)

// RecorderConfig configures a Recorder.
type RecorderConfig struct {
	Idle    time.Duration // until a session without use expires; 0: 15 min
	Longest time.Duration // until it expires although it is used; 0: 1 h
	Pages   int           // live sessions of this node, of one tenant half of them, rounded up; 0: 3
}

// Recorder holds the sessions in which people record skills on this node, in memory: they end with
// the process. Each session has a page of its own, as a job has, but its hosts are not limited. An
// action of the person runs the same code as a step of a job, so every recorded step has been
// performed once.
//
// What is typed into a password field is kept in memory, for the replay, until the session is
// saved, forgotten or ends with the process. Pictures of the page paint password fields over, and
// whatever else shows what was typed into them.
type Recorder struct {
	b      *Browser
	cfg    RecorderConfig
	places *places

	mu       sync.Mutex // guards what is below
	sessions map[id.RecorderSessionID]*taught
	closed   bool
	work     sync.WaitGroup // sessions that are being closed
}

// NewRecorder returns the recorder of a node. It starts nothing.
func (b *Browser) NewRecorder(cfg RecorderConfig) *Recorder {
	if cfg.Idle <= 0 {
		cfg.Idle = recorderIdle
	}
	if cfg.Longest <= 0 {
		cfg.Longest = recorderLongest
	}
	if cfg.Pages <= 0 {
		cfg.Pages = recorderPages
	}
	r := &Recorder{b: b, cfg: cfg, places: newPlaces(cfg.Pages, (cfg.Pages+1)/2, 0), sessions: map[id.RecorderSessionID]*taught{}}
	b.mu.Lock()
	b.recorder = r
	b.mu.Unlock()
	return r
}

// taught is one session. The holder of turn drives its page.
type taught struct {
	r         *Recorder
	id        id.RecorderSessionID
	tenant    id.TenantID
	principal string
	key       string // of the call that began it
	calls     int    // that began it, with this key, and may have answered with it. Guarded by r.mu
	residency skill.Residency
	turn      chan struct{}
	waiting   chan struct{} // actions, with the one that is performed

	// What follows belongs to the holder of turn.
	s        *session // nil: it is not live any more
	rec      skill.Recording
	secrets  map[string]string
	pictured time.Time
	answers  []keyed // of the last actions that had a key

	mu      sync.Mutex // guards what is below
	view    skill.RecorderSession
	hosts   []string // addresses that were visited since they were last taken
	shots   []picture
	number  int       // of the last picture
	holder  string    // the call that makes a skill of it; "": none does
	taking  time.Time // since when
	changed chan struct{}
	timer   *time.Timer
	until   time.Time // the longest that it lives
}

// keyed is the answer to an action, under the key of its call.
type keyed struct {
	key    string
	answer *msg.Recorded
}

type picture struct {
	name string
	jpeg []byte
}

func unknownSession() error {
	return problem.New(problem.CodeBrowserSkillNotFound, "There is no such recorder session of yours.")
}

func badRecord(path, message string) error {
	return skill.InvalidArgs([]problem.Field{{Path: path, Message: message}})
}

// Served answers another node, or this one.
func (r *Recorder) Served(ctx context.Context, _ id.MemberID, m any) (any, error) {
	q, ok := m.(msg.Record)
	if !ok {
		return nil, fmt.Errorf("%T is no question to the recorder", m)
	}
	out, err := r.Record(ctx, &q)
	if err != nil {
		return nil, err
	}
	return *out, nil
}

// Record answers a question about sessions of this node. A session that this node does not have,
// or that is another principal's, is BROWSER_SKILL_NOT_FOUND.
func (r *Recorder) Record(ctx context.Context, q *msg.Record) (*msg.Recorded, error) {
	switch q.Do {
	case msg.RecordStart:
		return r.start(ctx, q)
	case msg.RecordHeld:
		r.mu.Lock()
		defer r.mu.Unlock()
		t := r.live(q)
		return &msg.Recorded{Held: t != nil && !t.begunBy(q), Begun: t != nil && t.begunBy(q)}, nil
	}
	t := r.find(q)
	if t == nil {
		return nil, unknownSession()
	}
	switch q.Do {
	case msg.RecordRead:
		return t.read(ctx, q.After)
	case msg.RecordAct:
		var a skill.Action
		if err := json.Unmarshal(q.Action, &a); err != nil {
			return nil, fmt.Errorf("read an action: %w", err)
		}
		return t.act(ctx, &a, q.Key)
	case msg.RecordFinish:
		return t.finish(ctx, q)
	case msg.RecordEnd:
		if q.Key != "" {
			r.unsaid(t)
		} else {
			r.forget(t)
		}
		return &msg.Recorded{}, nil
	case msg.RecordPicture:
		return t.picture(q.After)
	case msg.RecordTaken:
		return t.taken(q.Holder)
	case msg.RecordSpared:
		t.spared(q.Holder)
		return &msg.Recorded{}, nil
	case msg.RecordUsed:
		r.forget(t)
		return &msg.Recorded{}, nil
	}
	return nil, fmt.Errorf("the recorder does not know %q", q.Do)
}

func (r *Recorder) find(q *msg.Record) *taught {
	r.mu.Lock()
	defer r.mu.Unlock()
	if t := r.sessions[q.Session]; t != nil && t.tenant == q.Tenant && t.principal == q.Principal {
		return t
	}
	return nil
}

// live returns the live session of a principal, nil if there is none. r.mu is held.
func (r *Recorder) live(q *msg.Record) *taught {
	for _, t := range r.sessions {
		if t.tenant == q.Tenant && t.principal == q.Principal && t.status() == skill.RecorderLive {
			return t
		}
	}
	return nil
}

// begunBy reports whether a call is a repetition of the one that began the session.
func (t *taught) begunBy(q *msg.Record) bool { return q.Key != "" && q.Key == t.key }

func (t *taught) status() skill.RecorderStatus {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.view.Status
}

func (r *Recorder) unavailable(detail string) error {
	return &problem.Error{Code: problem.CodeBrowserSkillUnavailable, Detail: detail, RetryAfter: time.Minute}
}

// start opens a session at its first page. The repetition of a call that did so gets that session, once it is open.
func (r *Recorder) start(ctx context.Context, q *msg.Record) (*msg.Recorded, error) {
	if err := r.b.Available(); err != nil {
		return nil, r.unavailable("This node has no browser: an operator sets SVC_BROWSER.")
	}
	t := &taught{r: r, id: id.RecorderSessionID{UUID: id.New(q.Home.Shard())}, tenant: q.Tenant, principal: q.Principal, key: q.Key, calls: 1, turn: make(chan struct{}, 1), waiting: make(chan struct{}, recorderActions),
		rec: skill.Recording{StartURL: q.URL}, secrets: map[string]string{}, changed: make(chan struct{}), until: time.Now().Add(r.cfg.Longest)}
	if q.Resides {
		t.residency = append(skill.Residency{}, q.Residency...)
	}
	t.turn <- struct{}{}
	defer t.give()
	t.view = skill.RecorderSession{ID: t.id, Status: skill.RecorderLive, StartURL: q.URL, Width: viewWidth, Height: viewHeight, ExpiresAt: time.Now().Add(r.cfg.Idle).UTC()}
	r.mu.Lock()
	if r.closed {
		r.mu.Unlock()
		return nil, r.unavailable("This node is stopping.")
	}
	if other := r.live(q); other != nil {
		if !other.begunBy(q) {
			r.mu.Unlock()
			return nil, problem.New(problem.CodeInUse, "You have a live recorder session: finish or delete it first.")
		}
		other.calls++
		r.mu.Unlock()
		if out, err := other.again(ctx); out != nil || err != nil {
			return out, err
		}
		return r.start(ctx, q) // it did not open
	}
	release, err := r.places.take(ctx, q.Tenant)
	if err != nil {
		r.mu.Unlock()
		return nil, r.unavailable(fmt.Sprintf("No recorder session is free: a node has %d at a time, and a tenant %d of them. Try again when one has ended.", r.places.all, r.places.each))
	}
	r.sessions[t.id] = t
	r.mu.Unlock()
	started.Inc()
	r.trim(t)
	err = t.begin(ctx, release)
	if err == nil {
		if err = t.publish(ctx); err == nil && t.s == nil {
			err = badRecord("start_url", "the page left at once to where the service may not go")
		}
	}
	if err != nil {
		r.drop(t)
		return nil, err
	}
	t.touch()
	return t.answer()
}

// again answers a repetition of the call that began a session, once the session is open; nil: it is not live any more.
func (t *taught) again(ctx context.Context) (*msg.Recorded, error) {
	limit, cancel := context.WithTimeout(ctx, recorderAgain)
	defer cancel()
	if err := t.take(limit); err != nil {
		t.r.unsaid(t)
		if ctx.Err() == nil {
			err = &problem.Error{Code: problem.CodeIdempotencyInProgress, RetryAfter: time.Second, Detail: "The first request with this Idempotency-Key has not ended yet."}
		}
		return nil, err
	}
	defer t.give()
	if t.status() != skill.RecorderLive {
		return nil, nil
	}
	return t.answer()
}

func (t *taught) begin(ctx context.Context, release func()) error {
	job := &skill.Job{Tenant: t.tenant, Definition: &skill.Definition{}, Residency: t.residency, Open: func(ref string) (string, error) { return t.secrets[ref], nil }}
	s, err := t.r.b.openAt(ctx, job, skill.Scope{AnyHost: true, Residency: t.residency}, t.visits, release, t.r.cfg.Longest+time.Minute)
	if err != nil {
		if errors.Is(err, ErrUnavailable) {
			return t.r.unavailable("The browser did not start.")
		}
		return err
	}
	t.s = s
	limit, cancel := context.WithTimeout(ctx, s.step)
	defer cancel()
	err = s.goTo(limit, t.rec.StartURL)
	if err == nil {
		err = s.settle(limit)
	}
	if err == nil && s.proxy.refusedHost(s.page.URL()) {
		err = failed(skill.CodeStepFailed, "The outbound guard refuses this address.")
	}
	f := new(fault)
	switch {
	case errors.As(err, &f):
		return badRecord("start_url", f.Message)
	case errors.Is(err, errLeft):
		return badRecord("start_url", "leads to a host that the tenant's residency does not allow")
	case errors.Is(err, errLost):
		return badRecord("start_url", "the page ended while it loaded")
	}
	return err
}

// visits notes an address of the main frame, of which the host counts. The library's reader calls it.
func (t *taught) visits(url string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.hosts) < 1000 {
		t.hosts = append(t.hosts, strings.Clone(url[:min(len(url), maxAnyURL)]))
	}
}

// take waits for the turn to drive the page.
func (t *taught) take(ctx context.Context) error {
	select {
	case t.turn <- struct{}{}:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (t *taught) give() { <-t.turn }

// touch puts the end of an idle session off.
func (t *taught) touch() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.renew()
}

// renew gives a session the time that its status allows it. t.mu is held.
func (t *taught) renew() {
	d := min(t.r.cfg.Idle, time.Until(t.until))
	if t.view.Status != skill.RecorderLive {
		d = recorderKept
	}
	d = max(d, 0)
	t.view.ExpiresAt = time.Now().Add(d).UTC()
	if t.timer != nil {
		t.timer.Stop()
	}
	t.timer = time.AfterFunc(d, t.expire)
}

// expire ends a session that was not used in time, and forgets one that had ended. A timer that
// was replaced while it fired finds more time than that, and does nothing.
func (t *taught) expire() {
	if !t.r.enter() {
		return
	}
	defer t.r.work.Done()
	t.turn <- struct{}{} // an action that runs has its own limits
	defer t.give()
	t.mu.Lock()
	status, early := t.view.Status, time.Now().Before(t.view.ExpiresAt)
	t.mu.Unlock()
	switch {
	case early:
	case status == skill.RecorderLive:
		t.stop(skill.RecorderExpired, "The session was not used in time.")
	default:
		t.r.drop(t)
	}
}

// enter counts work that Close waits for; false: the recorder is closed.
func (r *Recorder) enter() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return false
	}
	r.work.Add(1)
	return true
}

// stop ends the page of a live session, which is kept for a while with what it recorded. The caller holds the turn.
func (t *taught) stop(as skill.RecorderStatus, note string) {
	if t.s != nil {
		t.s.Close()
		t.s = nil
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.view.Status == skill.RecorderLive {
		t.view.Status, t.view.Note = as, note
		t.renew()
		finished.WithLabelValues(string(as)).Inc()
	}
	if as == skill.RecorderExpired {
		clear(t.secrets)
		t.shots, t.view.Shot = nil, ""
	}
	t.stir()
}

// stir wakes those who wait for a change. t.mu is held.
func (t *taught) stir() {
	close(t.changed)
	t.changed = make(chan struct{})
}

// drop forgets a session whose turn the caller holds.
func (r *Recorder) drop(t *taught) {
	t.stop(skill.RecorderEnded, "")
	clear(t.secrets)
	t.mu.Lock()
	if t.timer != nil {
		t.timer.Stop()
	}
	t.shots = nil
	t.mu.Unlock()
	r.mu.Lock()
	delete(r.sessions, t.id)
	r.mu.Unlock()
}

// forget ends a session and forgets it.
func (r *Recorder) forget(t *taught) {
	r.mu.Lock()
	_, there := r.sessions[t.id]
	delete(r.sessions, t.id)
	r.mu.Unlock()
	if there {
		t.end()
	}
}

// unsaid forgets a session with whose id a call that began it did not answer, unless another call may have.
func (r *Recorder) unsaid(t *taught) {
	r.mu.Lock()
	t.calls--
	there := r.sessions[t.id] != nil && t.calls == 0
	if there {
		delete(r.sessions, t.id)
	}
	r.mu.Unlock()
	if there {
		t.end()
	}
}

// end closes a session that no call finds any more.
func (t *taught) end() {
	t.turn <- struct{}{} // an action that runs has its own limits
	defer t.give()
	t.r.drop(t)
}

// trim forgets the oldest ended sessions where too many are kept: of a session's principal, of its tenant, and then of all.
func (r *Recorder) trim(of *taught) {
	for _, c := range []struct {
		most int
		in   func(*taught) bool
	}{
		{recorderEach, func(t *taught) bool { return t.tenant == of.tenant && t.principal == of.principal }},
		{recorderTenant, func(t *taught) bool { return t.tenant == of.tenant }},
		{recorderEnded, func(*taught) bool { return true }},
	} {
		r.mu.Lock()
		var ended []*taught
		for _, t := range r.sessions {
			if c.in(t) && t.status() != skill.RecorderLive {
				ended = append(ended, t)
			}
		}
		r.mu.Unlock()
		slices.SortFunc(ended, func(a, b *taught) int { return slices.Compare(a.id.UUID[:], b.id.UUID[:]) })
		for i := 0; i < len(ended)-c.most; i++ {
			r.forget(ended[i])
		}
	}
}

// close ends all sessions.
func (r *Recorder) close() {
	r.mu.Lock()
	r.closed = true
	all := make([]*taught, 0, len(r.sessions))
	for _, t := range r.sessions {
		all = append(all, t)
	}
	r.mu.Unlock()
	r.places.close()
	for _, t := range all {
		r.forget(t)
	}
	r.work.Wait()
}

// answer returns the session as it was published last.
func (t *taught) answer() (*msg.Recorded, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	doc, err := json.Marshal(&t.view)
	if err != nil {
		return nil, fmt.Errorf("write a recorder session: %w", err)
	}
	return &msg.Recorded{Session: doc}, nil
}

// read returns a session. With after it waits, for ten seconds at most, until the picture is
// another one; a live page is looked at meanwhile, four times in a second while it changes.
func (t *taught) read(ctx context.Context, after string) (*msg.Recorded, error) {
	t.touchIfLive()
	if after == "" {
		return t.answer()
	}
	ctx, cancel := context.WithTimeout(ctx, recorderLook)
	defer cancel()
	for calm := 0; ; calm++ {
		t.mu.Lock()
		is, live, changed := t.view.Shot, t.view.Status == skill.RecorderLive, t.changed
		t.mu.Unlock()
		if is != after || !live {
			return t.answer()
		}
		pause := shotEvery
		if calm > 8 {
			pause = shotIdle
		}
		select {
		case <-changed:
			continue
		case <-ctx.Done():
			return t.answer()
		case <-time.After(pause):
		}
		if err := t.look(ctx); err != nil && ctx.Err() == nil {
			return nil, err
		}
	}
}

func (t *taught) touchIfLive() {
	if t.status() == skill.RecorderLive {
		t.touch()
	}
}

// look takes a picture unless an action is under way, which takes its own, or another reader has just
// taken one.
func (t *taught) look(ctx context.Context) error {
	select {
	case t.turn <- struct{}{}:
		defer t.give()
	default:
		return nil
	}
	t.mu.Lock()
	fresh := time.Since(t.pictured) < shotEvery
	t.mu.Unlock()
	if fresh {
		return nil
	}
	return t.publish(ctx)
}

// picture returns one of the last pictures.
func (t *taught) picture(name string) (*msg.Recorded, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, p := range t.shots {
		if p.name == name {
			return &msg.Recorded{JPEG: p.jpeg}, nil
		}
	}
	return nil, problem.NotFound("screenshot")
}

// taken returns the steps of an ended session to the call that saves a skill, which is its only holder until it says what
// became of the skill. A call whose node dies holds it for a minute.
func (t *taught) taken(holder string) (*msg.Recorded, error) {
	if err := t.take(context.Background()); err != nil {
		return nil, err
	}
	defer t.give()
	t.mu.Lock()
	ended, replay := t.view.Status == skill.RecorderEnded, t.view.DryRun
	usable := ended && replay != nil && replay.Status == skill.ReplayLanded
	held := t.holder != "" && t.holder != holder && time.Since(t.taking) < recorderTaking
	if usable && !held {
		t.holder, t.taking = holder, time.Now()
	}
	t.mu.Unlock()
	switch {
	case usable:
	case !ended:
		return nil, unknownSession()
	case replay == nil:
		return nil, problem.New(problem.CodeBrowserSkillInvalid, "recorder_session_id: it ended without a dry run. Finish it first.")
	case replay.Status == skill.ReplaySkipped:
		return nil, problem.New(problem.CodeBrowserSkillInvalid, "recorder_session_id: its dry run was skipped. Finish it with reads_only if the skill only reads, or record anew and mark the commit step.")
	default:
		return nil, problem.New(problem.CodeBrowserSkillInvalid, "recorder_session_id: its dry run did not land: "+replay.Message+" Finish it again with other params, or record anew.")
	}
	if held {
		return nil, problem.New(problem.CodeBrowserSkillInvalid, "recorder_session_id: a skill is being made of this session already")
	}
	doc, err := json.Marshal(t.rec.Definition().Steps)
	if err != nil {
		return nil, fmt.Errorf("write recorded steps: %w", err)
	}
	return &msg.Recorded{Steps: doc}, nil
}

// spared lets another call make a skill of the session.
func (t *taught) spared(holder string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.holder == holder {
		t.holder = ""
	}
}
