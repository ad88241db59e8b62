package blackbox

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"agentsvc/schemas/webhook"
)

// Webhooks as a receiver sees them: events of the real binary, over sockets, with sinks that outlive it.

// arrival is one attempt that a sink received completely.
type arrival struct {
	at        time.Time
	answered  time.Time // zero: not yet, or never
	status    int       // of the response
	delivery  string
	signature string
	media     string
	body      string
}

// envelope is the body of a delivery.
type envelope struct {
	ID        string
	Type      string
	Data      json.RawMessage
	CreatedAt time.Time `json:"created_at"`
}

func (a *arrival) envelope(t *testing.T) envelope {
	t.Helper()
	var e envelope
	if err := json.Unmarshal([]byte(a.body), &e); err != nil {
		t.Fatalf("a delivery of %q: %v", a.body, err)
	}
	return e
}

// reaction is the response of a sink to the n-th attempt of a delivery, from 1.
type reaction func(w http.ResponseWriter, r *http.Request, n int)

// answers is a reaction with the same status for every attempt.
func answers(status int) reaction {
	return func(w http.ResponseWriter, _ *http.Request, _ int) { w.WriteHeader(status) }
}

// failsFirst fails the first attempts of each delivery.
func failsFirst(times int) reaction {
	return func(w http.ResponseWriter, _ *http.Request, n int) {
		if n <= times {
			w.WriteHeader(http.StatusServiceUnavailable)
		}
	}
}

// fails fails each attempt with 503, the last one of a delivery only when the channel is closed: until then a test
// finds the delivery pending.
func fails(last <-chan struct{}) reaction {
	return func(w http.ResponseWriter, r *http.Request, n int) {
		if n == webhook.Attempts {
			select {
			case <-last:
			case <-r.Context().Done():
			}
		}
		w.WriteHeader(http.StatusServiceUnavailable)
	}
}

// sink is a receiver that a test controls.
type sink struct {
	*httptest.Server

	mu       sync.Mutex // guards the fields below
	reaction reaction
	heard    []*arrival
	of       map[string]int // number of attempts by delivery
}

func newSink(t *testing.T, does reaction) *sink {
	t.Helper()
	s := &sink{reaction: does, of: map[string]int{}}
	s.Server = httptest.NewServer(s)
	t.Cleanup(func() {
		s.CloseClientConnections() // Close waits for responses, and some hang
		s.Close()
	})
	return s
}

// does changes the reaction to further attempts.
func (s *sink) does(r reaction) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.reaction = r
}

func (s *sink) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return // the sender was killed meanwhile
	}
	a := &arrival{at: time.Now(), delivery: r.Header.Get(webhook.DeliveryHeader), signature: r.Header.Get(webhook.SignatureHeader), media: r.Header.Get("Content-Type"), body: string(body)}
	s.mu.Lock()
	s.heard = append(s.heard, a)
	s.of[a.delivery]++
	n, does := s.of[a.delivery], s.reaction
	s.mu.Unlock()
	answer := &answering{ResponseWriter: w, status: http.StatusOK}
	does(answer, r, n)
	s.mu.Lock()
	defer s.mu.Unlock()
	a.answered, a.status = time.Now(), answer.status
}

// answering records the status of a response.
type answering struct {
	http.ResponseWriter
	status int
}

func (w *answering) WriteHeader(status int) {
	w.status = status
	w.ResponseWriter.WriteHeader(status)
}

func (w *answering) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// arrivals returns all attempts so far, in order.
func (s *sink) arrivals() []arrival {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := make([]arrival, len(s.heard))
	for i, a := range s.heard {
		out[i] = *a
	}
	return out
}

// byDelivery returns the attempts of each delivery.
func (s *sink) byDelivery() map[string][]arrival {
	out := map[string][]arrival{}
	for _, a := range s.arrivals() {
		out[a.delivery] = append(out[a.delivery], a)
	}
	return out
}

// types counts the events of each type, each event once.
func (s *sink) types(t *testing.T) map[string]int {
	t.Helper()
	seen, out := map[string]bool{}, map[string]int{}
	for _, a := range s.arrivals() {
		if e := a.envelope(t); !seen[e.ID] {
			seen[e.ID] = true
			out[e.Type]++
		}
	}
	return out
}

// secretSince is a secret with the time of the response that showed it.
type secretSince struct {
	secret string
	since  time.Time
}

// subscriber is an endpoint of a tenant with its sink.
type subscriber struct {
	*sink
	c    *caller
	id   string
	path string

	keys    sync.Mutex // guards secrets
	secrets []secretSince
}

// subscribe creates an endpoint for a sink, with these events.
func (c *caller) subscribe(t *testing.T, ctx context.Context, s *sink, events ...string) *subscriber {
	t.Helper()
	var made struct {
		ID      string
		URL     string
		Secret  string
		Events  []string
		Enabled bool
	}
	c.ask(t, ctx, 201, "POST", "/v1/webhooks", object{"url": s.URL, "events": events}, &made)
	if made.Secret == "" || made.URL != s.URL || !slices.Equal(made.Events, events) || !made.Enabled {
		t.Errorf("created %+v", made)
	}
	return &subscriber{sink: s, c: c, id: made.ID, path: "/v1/webhooks/" + made.ID, secrets: []secretSince{{made.Secret, time.Now()}}}
}

// rotate requests a new secret until there is a response, over crashes.
func (s *subscriber) rotate(ctx context.Context, key string) error {
	a, err := s.c.careful(ctx, "POST", s.path+"/rotate-secret", key, nil)
	if err != nil {
		return err
	}
	var made struct{ Secret string }
	if err := json.Unmarshal(a.body, &made); err != nil || a.status != 200 || made.Secret == "" {
		return fmt.Errorf("rotate: %s, %v", a, err)
	}
	s.keys.Lock()
	defer s.keys.Unlock()
	s.secrets = append(s.secrets, secretSince{made.Secret, time.Now()})
	return nil
}

// signer returns the index of the secret with which an attempt was signed, -1 for none.
func (s *subscriber) signer(a arrival) int {
	s.keys.Lock()
	defer s.keys.Unlock()
	return slices.IndexFunc(s.secrets, func(k secretSince) bool { return webhook.Verify(k.secret, a.signature, []byte(a.body), a.at) == nil })
}

// signedLate reports whether an attempt that began after a time is signed with an older secret than the latest one
// shown by then.
func (s *subscriber) signedLate(a arrival, after time.Time) bool {
	by := s.signer(a)
	s.keys.Lock()
	defer s.keys.Unlock()
	return by+1 < len(s.secrets) && s.secrets[by+1].since.Before(after)
}

// deliveryAnswer is a delivery as the API shows it.
type deliveryAnswer struct {
	ID             string
	EventID        string `json:"event_id"`
	Type           string
	Status         string
	Attempts       int
	LastHTTPStatus *int       `json:"last_http_status"`
	LastError      *string    `json:"last_error"`
	NextAttemptAt  *time.Time `json:"next_attempt_at"`
	CreatedAt      time.Time  `json:"created_at"`
	AttemptLog     []struct {
		At         time.Time
		HTTPStatus *int `json:"http_status"`
		Error      *string
		DurationMS *int64 `json:"duration_ms"`
	} `json:"attempt_log"`
	Event json.RawMessage
}

// failure returns the last error shown.
func (d *deliveryAnswer) failure() string {
	if d.LastError == nil {
		return ""
	}
	return *d.LastError
}

// unknowns returns the number of a delivery's attempts with an unknown outcome.
func unknowns(d deliveryAnswer) (n int) {
	for _, a := range d.AttemptLog {
		if a.Error != nil && strings.Contains(*a.Error, "not known") {
			n++
		}
	}
	return n
}

// tryDeliveries returns all deliveries, newest first, reading page by page.
func (s *subscriber) tryDeliveries(ctx context.Context) ([]deliveryAnswer, error) {
	items, _, err := s.c.Pages(ctx, s.path+"/deliveries", url.Values{}, 1<<20)
	if err != nil {
		return nil, err
	}
	out := make([]deliveryAnswer, len(items))
	for i, item := range items {
		if err := json.Unmarshal(item, &out[i]); err != nil {
			return nil, err
		}
	}
	return out, nil
}

func (s *subscriber) deliveries(t *testing.T, ctx context.Context) []deliveryAnswer {
	t.Helper()
	all, err := s.tryDeliveries(ctx)
	if err != nil {
		t.Fatal(err)
	}
	return all
}

func (s *subscriber) delivery(t *testing.T, ctx context.Context, id string) deliveryAnswer {
	t.Helper()
	var d deliveryAnswer
	s.c.ask(t, ctx, 200, "GET", s.path+"/deliveries/"+id, nil, &d)
	return d
}

// ended waits until there are n deliveries and none is pending.
func (s *subscriber) ended(t *testing.T, ctx context.Context, n int) []deliveryAnswer {
	t.Helper()
	var all []deliveryAnswer
	eventually(t, ctx, fmt.Sprintf("%d deliveries have ended", n), func() bool {
		all = s.deliveries(t, ctx)
		return len(all) >= n && !slices.ContainsFunc(all, func(d deliveryAnswer) bool { return d.Status == "pending" })
	})
	if len(all) != n {
		t.Errorf("%d deliveries, want %d", len(all), n)
	}
	return all
}

// test sends a webhook.test and returns its delivery.
func (s *subscriber) test(t *testing.T, ctx context.Context) string {
	t.Helper()
	var sent struct {
		DeliveryID string `json:"delivery_id"`
	}
	s.c.ask(t, ctx, 202, "POST", s.path+"/test", nil, &sent)
	return sent.DeliveryID
}

func (s *subscriber) enable(t *testing.T, ctx context.Context, on bool) {
	t.Helper()
	s.c.ask(t, ctx, 200, "PATCH", s.path, object{"enabled": on}, nil)
}

// intact checks each attempt at the sink against its delivery: signed, the same body for all attempts, with the id of
// the event.
func (s *subscriber) intact(t *testing.T, all []deliveryAnswer) {
	t.Helper()
	known := map[string]deliveryAnswer{}
	for _, d := range all {
		known[d.ID] = d
	}
	for id, as := range s.byDelivery() {
		d, ok := known[id]
		if !ok {
			t.Errorf("an attempt of the unknown delivery %q", id)
			continue
		}
		for i, a := range as {
			e := a.envelope(t)
			if a.body != as[0].body || e.ID != d.EventID || e.Type != d.Type || a.media != "application/json" || s.signer(a) < 0 {
				t.Errorf("attempt %d of the delivery %s: %+v, event %+v", i+1, id, a, e)
			}
		}
	}
}

const (
	webhookBackoff = 100 * time.Millisecond
	webhookTimeout = 10 * time.Second
)

// TestWebhooks tests one node, idle and under load.
func TestWebhooks(t *testing.T) {
	t.Parallel()
	n := newSceneNode(t, calm, "SVC_WEBHOOK_BACKOFF="+webhookBackoff.String(), "SVC_WEBHOOK_TIMEOUT="+webhookTimeout.String(), "SVC_RUN_CONCURRENCY=3", "SVC_ESCALATION_FRACTION=0.05")
	n.start()
	for name, test := range map[string]func(t *testing.T, n *node){
		"the end of a run":                              endsOfRuns,
		"a run that is cancelled":                       cancelledRuns,
		"every story of a gated call":                   eventsOfStories,
		"an approval that is escalated":                 eventOfEscalation,
		"five attempts, and never a sixth":              fiveAttempts,
		"a disabled endpoint":                           disabledEndpoint,
		"a rotation under load":                         rotationUnderLoad,
		"test, redeliver and recover":                   sentAgain,
		"a deleted endpoint":                            deletedEndpoint,
		"another tenant's endpoint":                     foreignEndpoint,
		"slow, dead and hostile endpoints delay nobody": hostileEndpoints,
		"svc listen":                                    listenForwards,
		"svc webhooks":                                  webhookCommands,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(t, &node{t, n.process})
		})
	}
}

// service.md, Run status: "finishes: SSE and webhook run.completed", "fails: SSE and
// webhook run.failed"; open-parts.md, Webhooks: their data.
func endsOfRuns(t *testing.T, n *node) {
	ctx := within(t, 20*time.Second)
	c := n.tenant("ends of runs")
	agent := c.publish(t, "Helper", simulatedModel)
	all, some := c.subscribe(t, ctx, newSink(t, answers(204)), "*"), c.subscribe(t, ctx, newSink(t, answers(200)), "run.failed", "approval.decided")
	thread := c.thread(t, ctx, agent)
	runs := map[string]string{ // by type
		c.say(t, ctx, thread, "/say done"):         "run.completed",
		c.runOnce(t, ctx, agent, "/say alone"):     "run.completed",
		c.runOnce(t, ctx, agent, "/fail for once"): "run.failed",
	}
	for run := range runs {
		c.poll(t, ctx, run, "")
	}
	heard := all.ended(t, ctx, len(runs))
	all.intact(t, heard)
	for _, d := range heard {
		a := all.byDelivery()[d.ID]
		if d.Status != "succeeded" || d.Attempts != 1 || len(a) != 1 || d.LastHTTPStatus == nil || *d.LastHTTPStatus != 204 || d.LastError != nil || d.NextAttemptAt != nil || len(d.AttemptLog) != 1 || d.AttemptLog[0].DurationMS == nil {
			t.Errorf("%+v, %d arrivals", d, len(a))
			continue
		}
		if got := all.delivery(t, ctx, d.ID); string(got.Event) != a[0].body {
			t.Errorf("sent\n%s\nshown\n%s", a[0].body, got.Event)
		}
		var data struct {
			RunID      string  `json:"run_id"`
			AgentID    string  `json:"agent_id"`
			WorkflowID *string `json:"workflow_id"`
			ThreadID   *string `json:"thread_id"`
			Status     string
			Output     json.RawMessage
			Code       string
			Message    string
			TokensIn   int64     `json:"tokens_in"`
			TokensOut  int64     `json:"tokens_out"`
			CostUSD    float64   `json:"cost_usd"`
			FinishedAt time.Time `json:"finished_at"`
		}
		if err := json.Unmarshal(a[0].envelope(t).Data, &data); err != nil {
			t.Fatal(err)
		}
		r := c.read(t, ctx, data.RunID)
		if runs[data.RunID] != d.Type || data.AgentID != agent || data.WorkflowID != nil || data.Status != r.Run.Status || string(data.Output) != string(r.Run.Output) ||
			data.TokensIn != r.Run.TokensIn || data.TokensOut != r.Run.TokensOut || data.CostUSD != r.Run.CostUSD || !data.FinishedAt.Equal(*r.Run.FinishedAt) ||
			(data.ThreadID == nil) != (r.Run.ThreadID == nil) || data.ThreadID != nil && *data.ThreadID != thread {
			t.Errorf("%s %+v of the run %+v", d.Type, data, r.Run)
		}
		if r.Run.Error == nil && (data.Code != "" || data.Message != "") || r.Run.Error != nil && (data.Code != r.Run.Error.Code || data.Message != r.Run.Error.Message) {
			t.Errorf("%s %+v of the run's error %+v", d.Type, data, r.Run.Error)
		}
		delete(runs, data.RunID)
	}
	if len(runs) > 0 {
		t.Errorf("no event was received of %v", runs)
	}
	some.ended(t, ctx, 1)
	if got := some.types(t); got["run.failed"] != 1 || len(got) != 1 {
		t.Errorf("the subscriber to run.failed received %v", got)
	}
}

// open-parts.md, Webhook data: "Every top-level run that ends cancelled sends run.failed with CANCELLED or EXPIRED":
// a queued, a running and a waiting run.
func cancelledRuns(t *testing.T, n *node) {
	ctx := within(t, 20*time.Second)
	c := n.tenant("cancelled runs")
	agent := c.publish(t, "Busy", simulatedModel)
	s := c.subscribe(t, ctx, newSink(t, answers(200)), "run.failed", "run.completed")
	g := gated(t, ctx, c, object{}, nil)
	var runs []string
	for range 3 {
		run := c.runOnce(t, ctx, agent, "/delay 1s\n/tokens 280")
		c.poll(t, ctx, run, "running")
		runs = append(runs, run)
	}
	queued := c.runOnce(t, ctx, agent, "/say later")
	if r := c.read(t, ctx, queued); r.Run.Status != "queued" {
		t.Errorf("the fourth run is %s", r.Run.Status)
	}
	runs = append([]string{queued, g.run}, runs...)
	for _, run := range runs {
		c.ask(t, ctx, 200, "POST", "/v1/runs/"+run+"/cancel", nil, nil)
		c.ask(t, ctx, 200, "POST", "/v1/runs/"+run+"/cancel", nil, nil) // a repeat sends no event
	}
	s.intact(t, s.ended(t, ctx, len(runs)))
	var heard []string
	for _, a := range s.arrivals() {
		e := a.envelope(t)
		var data struct {
			RunID  string `json:"run_id"`
			Status string
			Code   string
		}
		if err := json.Unmarshal(e.Data, &data); err != nil || e.Type != "run.failed" || data.Status != "cancelled" || data.Code != "CANCELLED" {
			t.Errorf("%s %s: %v", e.Type, e.Data, err)
		}
		heard = append(heard, data.RunID)
	}
	slices.Sort(heard)
	slices.Sort(runs)
	sameLines(t, "heard of", heard, runs)
}

// eventKey is the subject of an event.
type eventKey struct{ kind, about, status string }

// event returns the subject of an attempt: the run or the approval, with its status if the type has one, and the code
// of a failed run.
func (a *arrival) event(t *testing.T) eventKey {
	t.Helper()
	e := a.envelope(t)
	var data struct {
		RunID      string `json:"run_id"`
		ApprovalID string `json:"approval_id"`
		Status     string
		Code       string
	}
	if err := json.Unmarshal(e.Data, &data); err != nil {
		t.Fatalf("%s: %v", a.body, err)
	}
	if data.ApprovalID != "" {
		return eventKey{e.Type, data.ApprovalID, data.Status}
	}
	return eventKey{e.Type, data.RunID, strings.TrimSpace(data.Status + " " + data.Code)}
}

// tidings returns the events that runs and their approvals must have sent, according to the API.
func (c *caller) tidings(t *testing.T, ctx context.Context, runs []string) map[eventKey]int {
	t.Helper()
	out := map[eventKey]int{}
	for _, run := range runs {
		r := c.read(t, ctx, run)
		kind, status := "run.completed", r.Run.Status
		if r.Run.Error != nil {
			kind, status = "run.failed", status+" "+r.Run.Error.Code
		}
		out[eventKey{kind, run, status}] = 1
		for _, a := range c.approvals(t, ctx, "run_id="+run) {
			out[eventKey{"approval.requested", a.ID, ""}] = 1
			out[eventKey{"approval.decided", a.ID, a.Status}] = 1
			if a.EscalatedAt != nil {
				out[eventKey{"approval.escalated", a.ID, ""}] = 1
			}
		}
	}
	return out
}

// tells compares the events that a subscriber received with those that were sent.
func (s *subscriber) tells(t *testing.T, want map[eventKey]int) {
	t.Helper()
	got, seen := map[eventKey]int{}, map[string]bool{}
	for _, a := range s.arrivals() {
		if id := a.envelope(t).ID; !seen[id] {
			seen[id] = true
			got[a.event(t)]++
		}
	}
	for k, n := range want {
		if got[k] != n {
			t.Errorf("%s of %s (%s) was sent as %d events", k.kind, k.about, k.status, got[k])
		}
		delete(got, k)
	}
	for k := range got {
		t.Errorf("%s of %s (%s) was never true", k.kind, k.about, k.status)
	}
}

// runsOf returns the runs of tales.
func runsOf(tales []*tale) (runs []string) {
	for _, x := range tales {
		if x.run != "" {
			runs = append(runs, x.run)
		}
	}
	return runs
}

// Every way in which an approval ends, and the run with it, sends one event each.
func eventsOfStories(t *testing.T, n *node) {
	ctx := within(t, 30*time.Second)
	w := newScene(t, n)
	s := w.first.subscribe(t, ctx, newSink(t, answers(200)), "*")
	tales := w.tellEach(ctx)
	for _, x := range tales {
		if x.err != nil {
			t.Fatal(x.err)
		}
	}
	want := w.first.tidings(t, ctx, runsOf(tales))
	s.intact(t, s.ended(t, ctx, len(want)))
	s.tells(t, want)
	kinds := map[string]int{}
	for k := range want {
		kinds[k.kind+" "+k.status]++
	}
	for _, kind := range []string{"run.completed succeeded", "run.failed cancelled CANCELLED", "run.failed cancelled EXPIRED", "approval.requested ", "approval.decided approved", "approval.decided edited", "approval.decided rejected",
		"approval.decided responded", "approval.decided expired", "approval.decided cancelled"} {
		if kinds[kind] == 0 {
			t.Errorf("there was no %q: the test is void", kind)
		}
	}
}

func eventOfEscalation(t *testing.T, n *node) {
	ctx := within(t, 20*time.Second)
	c := n.tenant("escalation")
	s := c.subscribe(t, ctx, newSink(t, answers(200)), "approval.escalated", "approval.requested", "approval.decided")
	g := gated(t, ctx, c, object{"approver_role": "member", "escalate_to_role": "admin", "sla_minutes": 0.5, "risk": "critical"}, nil)
	eventually(t, ctx, "the escalation", func() bool { return len(s.arrivals()) == 2 })
	c.decides(t, ctx, g.a.ID, object{"action": "approve"})
	c.poll(t, ctx, g.run, "succeeded")
	s.intact(t, s.ended(t, ctx, 3))
	a := c.approval(t, ctx, g.a.ID)
	for i, kind := range []string{"requested member", "escalated admin", "decided admin"} {
		e := s.arrivals()[i].envelope(t)
		var data struct {
			ApprovalID   string `json:"approval_id"`
			RunID        string `json:"run_id"`
			Tool         string
			Risk         string
			AssigneeRole string     `json:"assignee_role"`
			ExpiresAt    time.Time  `json:"expires_at"`
			DecidedBy    string     `json:"decided_by"`
			DecidedAt    *time.Time `json:"decided_at"`
		}
		if err := json.Unmarshal(e.Data, &data); err != nil || strings.TrimPrefix(e.Type, "approval.")+" "+data.AssigneeRole != kind || data.ApprovalID != g.a.ID || data.RunID != g.run ||
			data.Tool != g.shop.slug+".orders.refund" || data.Risk != "critical" || !data.ExpiresAt.Equal(a.ExpiresAt) {
			t.Errorf("%s, want %s: %s, %v", e.Type, kind, e.Data, err)
		}
		if e.Type == "approval.decided" && (data.DecidedBy != a.Decisions[0].Principal || data.DecidedAt == nil || !data.DecidedAt.Equal(*a.DecidedAt)) {
			t.Errorf("decided: %s, the approval %+v", e.Data, a)
		}
	}
}

// service.md, Webhooks: "5 attempts, exponential backoff from 5 s"; "after the last
// failed attempt the delivery is marked failed".
func fiveAttempts(t *testing.T, n *node) {
	ctx := within(t, 20*time.Second)
	c := n.tenant("five attempts")
	s, late := c.subscribe(t, ctx, newSink(t, answers(500)), "*"), c.subscribe(t, ctx, newSink(t, failsFirst(4)), "*")
	s.test(t, ctx)
	late.test(t, ctx)
	d := s.ended(t, ctx, 1)[0]
	if d.Status != "failed" || d.Attempts != 5 || len(d.AttemptLog) != 5 || d.NextAttemptAt != nil || d.LastHTTPStatus == nil || *d.LastHTTPStatus != 500 || d.failure() == "" {
		t.Errorf("%+v", d)
	}
	s.intact(t, []deliveryAnswer{d})
	for i, a := range s.arrivals() {
		if i == 0 {
			continue
		}
		if pause, want := a.at.Sub(s.arrivals()[i-1].at), webhookBackoff<<(i-1); pause < want-pauseSlack {
			t.Errorf("attempt %d came %s after the one before, want %s", i+1, pause, want)
		}
	}
	if d := late.ended(t, ctx, 1)[0]; d.Status != "succeeded" || d.Attempts != 5 || len(d.AttemptLog) != 5 || d.LastError != nil {
		t.Errorf("%+v", d)
	}
	// A later delivery is served meanwhile: a sixth attempt would have come by then.
	s.does(answers(200))
	s.test(t, ctx)
	s.ended(t, ctx, 2)
	if got := len(s.byDelivery()[d.ID]); got != 5 {
		t.Errorf("%d attempts", got)
	}
}

// pauseSlack allows for differences between the clocks.
const pauseSlack = 20 * time.Millisecond

// open-parts.md, Webhooks: nothing is queued for a disabled endpoint; disabling it fails its pending deliveries, and
// recover queues them again.
func disabledEndpoint(t *testing.T, n *node) {
	ctx := within(t, 30*time.Second)
	c := n.tenant("disabled")
	agent := c.publish(t, "Helper", simulatedModel)
	last := make(chan struct{})
	s, other := c.subscribe(t, ctx, newSink(t, fails(last)), "*"), c.subscribe(t, ctx, newSink(t, answers(200)), "*")
	since := time.Now()
	c.poll(t, ctx, c.runOnce(t, ctx, agent, "/say before"), "succeeded")
	eventually(t, ctx, "an attempt", func() bool { return len(s.arrivals()) > 0 })
	s.enable(t, ctx, false)
	d := s.deliveries(t, ctx)[0] // at once: it is part of the same change
	if d.Status != "failed" || d.failure() != "the endpoint was disabled" || d.NextAttemptAt != nil {
		t.Errorf("%+v", d)
	}
	close(last)
	eventually(t, ctx, "no attempt is in flight", func() bool { d := s.delivery(t, ctx, d.ID); return len(d.AttemptLog) == d.Attempts })
	attempts := len(s.arrivals())
	c.poll(t, ctx, c.runOnce(t, ctx, agent, "/say meanwhile"), "succeeded")
	other.ended(t, ctx, 2)
	if got := s.deliveries(t, ctx); len(got) != 1 || len(s.arrivals()) > attempts {
		t.Errorf("%d deliveries, %d attempts since %d", len(got), len(s.arrivals()), attempts)
	}
	for _, path := range []string{"/test", "/deliveries/" + d.ID + "/redeliver", "/recover"} {
		var body any
		if path == "/recover" {
			body = object{"since": since}
		}
		if a := c.ask(t, ctx, 400, "POST", s.path+path, body, nil); a.code() != "VALIDATION" || !strings.Contains(string(a.body), "enable it first") {
			t.Errorf("POST %s of a disabled endpoint: %s", path, a)
		}
	}
	s.does(answers(200))
	s.enable(t, ctx, true)
	c.poll(t, ctx, c.runOnce(t, ctx, agent, "/say after"), "succeeded")
	s.ended(t, ctx, 2)
	var recovered struct{ Deliveries int }
	c.ask(t, ctx, 202, "POST", s.path+"/recover", object{"since": since}, &recovered)
	if recovered.Deliveries != 1 {
		t.Errorf("%d deliveries are recovered", recovered.Deliveries)
	}
	all := s.ended(t, ctx, 2)
	s.intact(t, all)
	if slices.ContainsFunc(all, func(d deliveryAnswer) bool { return d.Status != "succeeded" || d.Attempts != 1 }) {
		t.Errorf("%+v", all)
	}
}

// service.md, Webhooks: "Rotation has no overlap: every later delivery, including retries of earlier events, is signed
// with the new secret." Whatever follows the response in any way is signed with the new one.
func rotationUnderLoad(t *testing.T, n *node) {
	n.tenant("rotation").rotations(t, within(t, 30*time.Second), 12)
}

// rotations rotates an endpoint's secret this often while deliveries are sent to it.
func (c *caller) rotations(t *testing.T, ctx context.Context, rotations int) {
	t.Helper()
	s := c.subscribe(t, ctx, newSink(t, failsFirst(2)), "*")
	var mu sync.Mutex // guards asked
	asked := map[string]time.Time{}
	stop := make(chan struct{})
	var load sync.WaitGroup
	for range 4 {
		load.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				at := time.Now()
				a, err := c.do(ctx, "POST", s.path+"/test", nil)
				var sent struct {
					DeliveryID string `json:"delivery_id"`
				}
				if err != nil || a.status != 202 || a.decode(&sent) != nil {
					t.Errorf("test: %v %s", err, a)
					return
				}
				mu.Lock()
				asked[sent.DeliveryID] = at
				mu.Unlock()
			}
		})
	}
	for i := range rotations {
		heard := len(s.arrivals())
		eventually(t, ctx, "attempts", func() bool { return len(s.arrivals()) >= heard+20 })
		if err := s.rotate(ctx, fmt.Sprint("rotate", i)); err != nil {
			t.Fatal(err)
		}
	}
	close(stop)
	load.Wait()
	all := s.ended(t, ctx, len(asked))
	s.intact(t, all)
	after, retried, by := 0, 0, map[int]bool{}
	for id, as := range s.byDelivery() {
		from := asked[id]
		for i, a := range as {
			by[s.signer(a)] = true
			if s.signedLate(a, from) {
				t.Errorf("attempt %d of the delivery %s is signed with secret %d, which was rotated before", i+1, id, s.signer(a))
			}
			if s.signer(a) > 0 {
				after++
			}
			if i > 0 && s.signer(a) != s.signer(as[0]) {
				retried++
			}
			from = a.answered
		}
	}
	if len(by) != rotations+1 || after == 0 || retried == 0 {
		t.Errorf("%d secrets have signed, %d attempts after a rotation, %d repeats with another secret: the test is void", len(by), after, retried)
	}
}

// open-parts.md, Webhooks: test, redeliver and recover.
func sentAgain(t *testing.T, n *node) {
	ctx := within(t, 40*time.Second)
	c := n.tenant("again")
	agent := c.publish(t, "Helper", simulatedModel)
	s := c.subscribe(t, ctx, newSink(t, answers(200)), "approval.escalated")
	other := c.subscribe(t, ctx, newSink(t, answers(200)), "*")

	// A test reaches its endpoint, whatever the endpoint subscribes to, and no other.
	first := s.test(t, ctx)
	d := s.ended(t, ctx, 1)[0]
	var data struct {
		WebhookID string `json:"webhook_id"`
	}
	a := s.arrivals()[0]
	if err := json.Unmarshal(a.envelope(t).Data, &data); err != nil || d.ID != first || a.delivery != first || d.Type != "webhook.test" || data.WebhookID != s.id || len(other.arrivals()) != 0 {
		t.Errorf("%+v received %+v, %v; the other endpoint %v", d, a, err, other.arrivals())
	}

	// A succeeded delivery is sent again: the same delivery, event and bytes.
	again := func(id string) {
		t.Helper()
		var sent struct {
			DeliveryID string `json:"delivery_id"`
		}
		if c.ask(t, ctx, 202, "POST", s.path+"/deliveries/"+id+"/redeliver", nil, &sent); sent.DeliveryID != id {
			t.Errorf("redelivered %s, want %s", sent.DeliveryID, id)
		}
	}
	again(first)
	eventually(t, ctx, "it comes again", func() bool { return len(s.arrivals()) == 2 })
	d = s.ended(t, ctx, 1)[0]
	s.intact(t, []deliveryAnswer{d})
	if d.Status != "succeeded" || d.Attempts != 1 || len(d.AttemptLog) != 2 {
		t.Errorf("%+v", d)
	}

	// A failed delivery gets five more attempts, and a pending one no more than five.
	last := make(chan struct{})
	s.does(fails(last))
	second := s.test(t, ctx)
	eventually(t, ctx, "two attempts", func() bool { return len(s.byDelivery()[second]) >= 2 })
	again(second)
	again(second)
	close(last)
	s.ended(t, ctx, 2)
	if d := s.delivery(t, ctx, second); d.Status != "failed" || d.Attempts != 5 || len(s.byDelivery()[second]) != 5 {
		t.Errorf("%+v, %d attempts", d, len(s.byDelivery()[second]))
	}
	again(second)
	s.ended(t, ctx, 2)
	if d := s.delivery(t, ctx, second); d.Status != "failed" || d.Attempts != 5 || len(d.AttemptLog) != 10 || len(s.byDelivery()[second]) != 10 {
		t.Errorf("after the second round: %+v, %d attempts", d, len(s.byDelivery()[second]))
	}

	// recover queues all deliveries that failed since then, and no other.
	c.ask(t, ctx, 200, "PATCH", s.path, object{"events": []string{"run.completed"}}, nil)
	since := time.Now()
	for range 3 {
		c.poll(t, ctx, c.runOnce(t, ctx, agent, "/say lost"), "succeeded")
	}
	s.ended(t, ctx, 5)
	s.does(answers(200))
	var recovered struct{ Deliveries int }
	c.ask(t, ctx, 202, "POST", s.path+"/recover", object{"since": since}, &recovered)
	all := s.ended(t, ctx, 5)
	s.intact(t, all)
	for _, d := range all {
		if want := d.ID != second; (d.Status == "succeeded") != want {
			t.Errorf("%+v", d)
		}
	}
	if recovered.Deliveries != 3 {
		t.Errorf("%d deliveries are recovered", recovered.Deliveries)
	}
	if got := other.types(t); got["run.completed"] != 3 || got["webhook.test"] != 0 || len(other.arrivals()) != 3 {
		t.Errorf("the other endpoint received %v", got)
	}
}

// A deleted endpoint gets no more attempts, and its deliveries are deleted.
func deletedEndpoint(t *testing.T, n *node) {
	ctx := within(t, 20*time.Second)
	c := n.tenant("deleted")
	agent := c.publish(t, "Helper", simulatedModel)
	other := c.subscribe(t, ctx, newSink(t, answers(200)), "*")
	var s *subscriber
	var pending string
	attempts := 0
	eventually(t, ctx, "an endpoint is deleted between two attempts", func() bool {
		s = c.subscribe(t, ctx, newSink(t, answers(503)), "*")
		pending = s.test(t, ctx)
		var d deliveryAnswer
		eventually(t, ctx, "three attempts have ended", func() bool {
			d = s.delivery(t, ctx, pending)
			return len(d.AttemptLog) >= 3 && len(d.AttemptLog) == d.Attempts
		})
		attempts = len(s.arrivals())
		c.ask(t, ctx, 204, "DELETE", s.path, nil, nil)
		return d.NextAttemptAt != nil && time.Now().Before(*d.NextAttemptAt) // else the next one may have begun
	})
	for _, path := range []string{"", "/deliveries", "/deliveries/" + pending} {
		c.ask(t, ctx, 404, "GET", s.path+path, nil, nil)
	}
	c.poll(t, ctx, c.runOnce(t, ctx, agent, "/say after"), "succeeded")
	other.ended(t, ctx, 1)
	// The other endpoint's attempts fail and are repeated for as long as the deleted one's would have been.
	other.does(failsFirst(4))
	other.test(t, ctx)
	other.ended(t, ctx, 2)
	if got := len(s.arrivals()); got > attempts {
		t.Errorf("%d attempts after the endpoint was deleted", got-attempts)
	}
}

// Another tenant's ids are answered like unknown ids.
func foreignEndpoint(t *testing.T, n *node) {
	ctx := within(t, 20*time.Second)
	c, stranger := n.tenant("its own"), n.tenant("another")
	s := c.subscribe(t, ctx, newSink(t, answers(200)), "*")
	d := s.test(t, ctx)
	s.ended(t, ctx, 1)
	agent := stranger.publish(t, "Helper", simulatedModel)
	for _, row := range []struct {
		method, path string
		body         any
	}{
		{"GET", "", nil}, {"PATCH", "", object{"enabled": false}}, {"DELETE", "", nil}, {"POST", "/rotate-secret", nil}, {"POST", "/test", nil},
		{"GET", "/deliveries", nil}, {"GET", "/deliveries/" + d, nil}, {"POST", "/deliveries/" + d + "/redeliver", nil}, {"POST", "/recover", object{"since": time.Now()}},
	} {
		foreign := stranger.ask(t, ctx, 404, row.method, s.path+row.path, row.body, nil)
		none := stranger.ask(t, ctx, 404, row.method, "/v1/webhooks/"+runID+row.path, row.body, nil)
		if foreign.code() != none.code() || len(foreign.body) != len(none.body) {
			t.Errorf("%s %s: %s, for an unknown id: %s", row.method, row.path, foreign, none)
		}
	}
	mine := stranger.subscribe(t, ctx, newSink(t, answers(200)), "*")
	stranger.poll(t, ctx, stranger.runOnce(t, ctx, agent, "/say mine"), "succeeded")
	mine.ended(t, ctx, 1)
	if got := s.deliveries(t, ctx); len(got) != 1 || len(s.arrivals()) != 1 || got[0].Status != "succeeded" {
		t.Errorf("%d deliveries, %d attempts", len(got), len(s.arrivals()))
	}
}

// A failing endpoint does not delay others: the healthy one gets each event while hostile ones still hold their first
// attempts.
func hostileEndpoints(t *testing.T, n *node) {
	ctx := within(t, 30*time.Second)
	c := n.tenant("hostile")
	agent := c.publish(t, "Helper", simulatedModel)
	healthy := c.subscribe(t, ctx, newSink(t, answers(200)), "*")
	inside := newSink(t, answers(200))
	var written atomic.Int64
	hangs := func(_ http.ResponseWriter, r *http.Request, _ int) { <-r.Context().Done() }
	const slow = webhookTimeout - 2*time.Second
	hostile := map[string]*subscriber{}
	for name, does := range map[string]reaction{
		"dead": hangs,
		"slow": func(_ http.ResponseWriter, r *http.Request, _ int) { pauseFor(r.Context(), slow) },
		"gigabytes": func(w http.ResponseWriter, _ *http.Request, _ int) {
			chunk := make([]byte, 1<<16)
			for range 1 << 16 { // 4 GiB
				k, err := w.Write(chunk)
				if written.Add(int64(k)); err != nil {
					return
				}
			}
		},
		"redirect": func(w http.ResponseWriter, r *http.Request, _ int) {
			http.Redirect(w, r, inside.URL, http.StatusTemporaryRedirect)
		},
		"reset": func(w http.ResponseWriter, _ *http.Request, _ int) { panic(http.ErrAbortHandler) },
	} {
		hostile[name] = c.subscribe(t, ctx, newSink(t, does), "*")
	}
	const events = 30 // an endpoint has at most 32 attempts in flight
	for i := range events {
		c.runOnce(t, ctx, agent, fmt.Sprintf("/say %d", i))
	}
	healthy.intact(t, healthy.ended(t, ctx, events))
	var slowest time.Duration
	for _, a := range healthy.arrivals() {
		slowest = max(slowest, a.at.Sub(a.envelope(t).CreatedAt))
	}
	if slowest > slow-2*time.Second || len(healthy.arrivals()) != events {
		t.Errorf("%d events, received within %s", len(healthy.arrivals()), slowest)
	}
	t.Logf("the healthy endpoint received each within %s", slowest)
	for name, row := range map[string]struct{ status, says string }{
		"dead": {"pending", "in time"}, "slow": {"succeeded", ""}, "gigabytes": {"succeeded", ""}, "redirect": {"failed", "redirect"}, "reset": {"failed", "broke"},
	} {
		s := hostile[name]
		eventually(t, ctx, name+": each is "+row.status, func() bool {
			all := s.deliveries(t, ctx)
			return len(all) == events && !slices.ContainsFunc(all, func(d deliveryAnswer) bool {
				done := row.status == "pending" && d.Status == "failed" && d.Attempts == webhook.Attempts // the other rows took long
				return d.Status != row.status && !done || row.says == "" && d.LastError != nil || row.says != "" && !strings.Contains(d.failure(), row.says)
			})
		})
		s.intact(t, s.deliveries(t, ctx))
	}
	if got := len(inside.arrivals()); got != 0 {
		t.Errorf("a redirect was followed %d times", got)
	}
	if got := written.Load(); got > events*(8<<20) {
		t.Errorf("%d MiB of %d answers were taken", got>>20, events)
	}
}

// Three nodes: one of them sends all deliveries of an endpoint, whichever node has the runs, each once while no node
// dies; after that node is killed another one continues.
func TestWebhooksOnThreeNodes(t *testing.T) {
	const lease = 3 * time.Second
	b := newBed(t, 3, lease, "SVC_WEBHOOK_BACKOFF="+webhookBackoff.String(), "SVC_WEBHOOK_TIMEOUT=500ms")
	b.start()
	ctx := within(t, time.Minute)
	c := b.client(b.desk.tenant("three nodes"), b.book)
	agent := c.publish(t, "Helper", simulatedModel)
	var to []*subscriber
	for range 4 {
		to = append(to, c.subscribe(t, ctx, newSink(t, answers(200)), "*"))
	}
	var runs []string
	start := func(n int) {
		t.Helper()
		for range n {
			var started struct {
				RunID string `json:"run_id"`
			}
			if err := c.once(ctx, "/v1/agents/"+agent+"/runs", fmt.Sprint("run", len(runs)), object{"input": "/say told"}, &started); err != nil {
				t.Fatal(err)
			}
			runs = append(runs, started.RunID)
		}
	}
	start(30)
	for _, s := range to {
		all := s.ended(t, ctx, len(runs))
		s.intact(t, all)
		s.tells(t, c.tidings(t, ctx, runs))
		if len(s.arrivals()) != len(runs) {
			t.Errorf("%d attempts of %d deliveries", len(s.arrivals()), len(runs))
		}
	}
	c.rotations(t, ctx, 5)

	for _, s := range to {
		s.does(func(_ http.ResponseWriter, r *http.Request, n int) {
			if n == 1 {
				pauseFor(r.Context(), 400*time.Millisecond)
			}
		})
	}
	start(20)
	var sends *member
	eventually(t, ctx, "a node sends", func() bool {
		start(1)
		for _, m := range b.nodes {
			if under, ok := m.metric("svc_webhook_attempts_in_flight"); ok && under > 0 {
				sends = m
			}
		}
		return sends != nil
	})
	killed := time.Now()
	sends.kill()
	start(10)
	for _, run := range runs {
		c.poll(t, ctx, run, "succeeded")
	}
	unknown, slowest := 0, time.Duration(0)
	for _, s := range to {
		all := s.ended(t, ctx, len(runs))
		s.intact(t, all)
		s.tells(t, c.tidings(t, ctx, runs))
		for _, d := range all {
			unknown += unknowns(d)
			as := s.byDelivery()[d.ID]
			if d.Status != "succeeded" || len(as) == 0 || len(as) > d.Attempts {
				t.Errorf("%d attempts of %+v", len(as), d)
				continue
			}
			slowest = max(slowest, as[0].at.Sub(later(killed, d.CreatedAt)))
		}
	}
	if unknown == 0 {
		t.Error("no attempt was cut short by the kill: the test is void")
	}
	if slowest > lease+7*time.Second {
		t.Errorf("an event came %s after the kill, with a lease of %s", slowest, lease)
	}
	t.Logf("%d attempts were cut short, each event came within %s of the kill", unknown, slowest)
	b.book.report(t)
}

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

// A node that stops in order waits for the responses to its attempts: no delivery is repeated or lost.
func TestWebhooksOverAnOrderlyRestart(t *testing.T) {
	t.Parallel()
	n := newSceneNode(t, calm, "SVC_WEBHOOK_BACKOFF="+webhookBackoff.String(), "SVC_WEBHOOK_TIMEOUT=20s")
	n.start()
	ctx := within(t, 30*time.Second)
	ends := make(chan struct{})
	s := n.tenant("restart").subscribe(t, ctx, newSink(t, func(_ http.ResponseWriter, r *http.Request, _ int) {
		select {
		case <-ends:
		case <-r.Context().Done():
		}
	}), "*")
	const sent = 80 // more than are in flight at a time
	for range sent {
		s.test(t, ctx)
	}
	eventually(t, ctx, "as many attempts as there may be", func() bool { return len(s.arrivals()) == 32 })
	ended := make(chan error, 1)
	go func() { ended <- n.signal(syscall.SIGTERM, 15*time.Second) }()
	eventually(t, ctx, "the node is ending", func() bool { return n.ready(0) != nil })
	close(ends)
	if err := <-ended; err != nil {
		t.Fatal(err)
	}
	if code := n.exit(); code != 0 {
		t.Errorf("the node ended with code %d", code)
	}
	n.start()
	all := s.ended(t, ctx, sent)
	s.intact(t, all)
	for _, d := range all {
		if as := s.byDelivery()[d.ID]; d.Status != "succeeded" || d.Attempts != 1 || len(as) != 1 || unknowns(d) > 0 {
			t.Errorf("%d attempts of %+v", len(as), d)
		}
	}
}

// listener is a running svc listen.
type listener struct {
	ID, Secret string
	said       <-chan string
	signal     func(os.Signal)
	end        <-chan struct{}
	code       func() int
}

// listens runs svc listen against the node.
func (n *node) listens(t *testing.T, c *caller, args ...string) *listener {
	t.Helper()
	cmd := exec.Command(binary(t), append([]string{"listen", "--json"}, args...)...)
	cmd.Env = append(n.env[:len(n.env):len(n.env)], c.environment()...)
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	end, err := startChild(cmd)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { cmd.Process.Kill(); <-end })
	l := &listener{said: lines(out), signal: func(s os.Signal) { cmd.Process.Signal(s) }, end: end, code: func() int { return cmd.ProcessState.ExitCode() }}
	if err := json.Unmarshal([]byte(<-l.said), l); err != nil || l.ID == "" || l.Secret == "" {
		t.Fatalf("svc listen printed %+v, %v", l, err)
	}
	return l
}

// svc listen delivers to a local server as to an endpoint: failed attempts are repeated on schedule, and Ctrl-C removes
// the listener.
func listenForwards(t *testing.T, n *node) {
	ctx := within(t, 30*time.Second)
	c := n.tenant("listens")
	agent := c.publish(t, "Helper", simulatedModel)
	local := newSink(t, failsFirst(2))
	l := n.listens(t, c, "--events", "run.completed", "--forward", local.URL+"/hooks")
	s := &subscriber{sink: local, c: c, id: l.ID, secrets: []secretSince{{l.Secret, time.Now()}}}
	run := c.runOnce(t, ctx, agent, "/say told")
	c.poll(t, ctx, c.runOnce(t, ctx, agent, "/fail untold"), "failed")
	eventually(t, ctx, "three attempts", func() bool { return len(local.arrivals()) == 3 && !local.arrivals()[2].answered.IsZero() })
	for i, a := range local.arrivals() {
		first := local.arrivals()[0]
		if a.delivery != first.delivery || a.body != first.body || s.signer(a) != 0 || a.media != "application/json" || a.event(t) != (eventKey{"run.completed", run, "succeeded"}) {
			t.Errorf("attempt %d: %+v", i+1, a)
		}
		if i > 0 && a.at.Sub(local.arrivals()[i-1].at) < webhookBackoff<<(i-1)-pauseSlack {
			t.Errorf("attempt %d came %s after the one before", i+1, a.at.Sub(local.arrivals()[i-1].at))
		}
	}
	for i, want := range []int{503, 503, 200} {
		var said struct {
			DeliveryID string `json:"delivery_id"`
			Attempt    int
			HTTPStatus int `json:"http_status"`
			Event      json.RawMessage
		}
		line := <-l.said
		if err := json.Unmarshal([]byte(line), &said); err != nil || said.Attempt != i+1 || said.HTTPStatus != want || said.DeliveryID != local.arrivals()[0].delivery || string(said.Event) != local.arrivals()[0].body {
			t.Errorf("it prints %s, want attempt %d answered %d", line, i+1, want)
		}
	}
	var list struct{ Items []object }
	if c.ask(t, ctx, 200, "GET", "/v1/webhooks", nil, &list); len(list.Items) != 0 {
		t.Errorf("a listener is among the endpoints: %v", list.Items)
	}
	pull := "/v1/webhooks/listeners/" + l.ID + "/pull"
	c.ask(t, ctx, 200, "POST", pull, object{}, nil)
	l.signal(os.Interrupt)
	select {
	case <-l.end:
	case <-ctx.Done():
		t.Fatal("svc listen is still running after Ctrl-C")
	}
	if l.code() != 0 {
		t.Errorf("svc listen ended with code %d", l.code())
	}
	c.ask(t, ctx, 404, "POST", pull, object{}, nil)
}

// svc webhooks, as an operator uses it.
func webhookCommands(t *testing.T, n *node) {
	ctx := within(t, 30*time.Second)
	c := n.tenant("commands")
	agent := c.publish(t, "Helper", simulatedModel)
	s := newSink(t, answers(200))
	does := func(out any, args ...string) {
		t.Helper()
		said, code := n.svcWith(c.environment(), "", append([]string{"webhooks", "--json"}, args...)...)
		if code != 0 {
			t.Fatalf("svc webhooks %v: code %d: %s", args, code, said)
		}
		if out == nil {
			return
		}
		if err := json.Unmarshal([]byte(said), out); err != nil {
			t.Fatalf("svc webhooks %v: %v: %s", args, err, said)
		}
	}
	var made, rotated struct {
		ID, Secret string
		Enabled    bool
	}
	does(&made, "create", s.URL, "--events", "run.completed")
	sub := &subscriber{sink: s, c: c, id: made.ID, path: "/v1/webhooks/" + made.ID, secrets: []secretSince{{made.Secret, time.Now()}}}
	var sent struct {
		DeliveryID string `json:"delivery_id"`
	}
	does(&sent, "test", made.ID)
	sub.ended(t, ctx, 1)
	does(&rotated, "rotate", made.ID)
	sub.secrets = append(sub.secrets, secretSince{rotated.Secret, time.Now()})
	does(nil, "redeliver", made.ID, sent.DeliveryID)
	eventually(t, ctx, "it comes again", func() bool { return len(s.arrivals()) == 2 })
	if a := s.arrivals(); sub.signer(a[0]) != 0 || sub.signer(a[1]) != 1 || a[0].body != a[1].body {
		t.Errorf("%+v", a)
	}
	does(nil, "disable", made.ID)
	c.poll(t, ctx, c.runOnce(t, ctx, agent, "/say untold"), "succeeded")
	does(nil, "enable", made.ID)
	s.does(answers(500))
	c.poll(t, ctx, c.runOnce(t, ctx, agent, "/say told"), "succeeded")
	sub.ended(t, ctx, 2)
	s.does(answers(200))
	var recovered struct{ Deliveries int }
	does(&recovered, "recover", made.ID, "--since", "1h")
	var list struct {
		Items []struct{ ID, Type, Status string }
	}
	sub.ended(t, ctx, 2)
	does(&list, "deliveries", made.ID)
	if recovered.Deliveries != 1 || len(list.Items) != 2 || list.Items[0].Type != "run.completed" || list.Items[0].Status != "succeeded" || list.Items[1].ID != sent.DeliveryID {
		t.Errorf("recovered %d, deliveries %+v", recovered.Deliveries, list.Items)
	}
	does(nil, "rm", made.ID)
	var left struct{ Items []object }
	if does(&left, "ls"); len(left.Items) != 0 {
		t.Errorf("%v are left", left.Items)
	}
}
