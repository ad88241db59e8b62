package browser

import (
	"bytes"
	"context"
	_ "embed"
	"encoding/json"
	"errors"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/playwright-community/playwright-go"

	"agentsvc/schemas/msg"
	"agentsvc/schemas/problem"
	"agentsvc/schemas/skill"
)

//go:embed page/element.js
var elementJS string

// inPage returns a function of JavaScript that may use what element.js defines.
func inPage(args, body string) string { return args + " => {" + elementJS + body + "}" }

var (
	atPoint  = inPage("([x, y])", "return at(x, y)")
	toClick  = inPage("([x, y])", "const e = at(x, y); return e && target(e)") // the library takes no element of an element
	hasFocus = inPage("()", "return focused()")
	aboutIt  = inPage("e", "return JSON.stringify(about(e, false))")
)

// found is what a page says about an element. Pages are hostile: each selector is proved, and
// what is not of the form is dropped.
type found struct {
	Selectors []string `json:"selectors"`
	Text      string   `json:"text"`
	Tag       string   `json:"tag"`
	Kind      string   `json:"kind"`
	Options   []string `json:"options"`
	Choices   []string `json:"choices"` // values and labels of a list
	Secret    bool     `json:"secret"`
	Ticks     bool     `json:"ticks"`
	Ticked    bool     `json:"ticked"`
	Radio     bool     `json:"radio"`
	Field     bool     `json:"field"`
	Framed    bool     `json:"framed"`
	File      bool     `json:"file"`
	Says      string   `json:"says"`
	Wall      bool     `json:"wall"`
}

// Limits of what a page says about an element.
const (
	maxFound  = 64 << 10
	maxProofs = 10
	maxKept   = 5 // selectors of a step: the first, and candidates

	// patience is the time in which an element that an action names must be there.
	patience = 5 * time.Second
)

// parseFound reads what a page says.
func parseFound(v any) (*found, error) {
	text, _ := v.(string)
	f := new(found)
	if len(text) > maxFound || json.Unmarshal([]byte(text), f) != nil {
		return nil, badRecord("target", "the page does not say what this element is")
	}
	if len(f.Options) > skill.MaxEnum {
		f.Options = f.Options[:skill.MaxEnum]
	}
	var options []string
	for _, o := range f.Options {
		if o = skill.Clean(o); o != "" && len(o) <= skill.MaxValue && !slices.Contains(options, o) {
			options = append(options, o)
		}
	}
	f.Options = options
	return f, nil
}

// act performs an action and returns the session. An action whose key was used is not performed again: the answer is that of the
// first time.
func (t *taught) act(ctx context.Context, a *skill.Action, key string) (*msg.Recorded, error) {
	select {
	case t.waiting <- struct{}{}:
		defer func() { <-t.waiting }()
	default:
		return nil, &problem.Error{Code: problem.CodeRateLimited, Detail: "Too many actions of this session wait already.", RetryAfter: time.Second}
	}
	if err := t.take(ctx); err != nil {
		return nil, err
	}
	defer t.give()
	for _, k := range t.answers {
		if key != "" && k.key == key {
			return k.answer, nil
		}
	}
	if t.s == nil {
		return nil, badRecord("kind", "the session is not live any more")
	}
	t.touch()
	limit, cancel := context.WithTimeout(ctx, 3*t.s.step)
	defer cancel()
	err := t.perform(limit, a)
	maps.DeleteFunc(t.secrets, func(ref, _ string) bool { return !slices.Contains(t.rec.SecretRefs, ref) }) // undone, renamed, or never typed
	switch f := new(fault); {
	case errors.As(err, &f):
		at := "target"
		if a.Kind.Step() == skill.Navigate || a.Target == nil && a.X == nil {
			at = "value"
		}
		err = badRecord(at, f.Message)
	case (errors.Is(err, errLeft) || errors.Is(err, errLost)) && t.s.trouble() != nil:
		err = nil // the session says so
	case errors.Is(err, errLost):
		err = badRecord("target", "the page does not answer")
	case err != nil && ctx.Err() == nil && limit.Err() != nil:
		err = badRecord("kind", "the page did not do this in time")
	}
	outcome := "ok"
	if err != nil {
		outcome = "refused"
	}
	acted.WithLabelValues(string(a.Kind), outcome).Inc()
	shown := t.publish(ctx)
	if err != nil {
		return nil, err
	}
	out, err := t.answer()
	if err != nil {
		return nil, err
	}
	if key != "" { // also if the caller has left: the action was performed
		t.answers = append(t.answers[max(0, len(t.answers)-recorderKeys+1):], keyed{key, out})
	}
	return out, shown
}

func (t *taught) perform(ctx context.Context, a *skill.Action) error {
	switch a.Kind {
	case skill.ActBind:
		return t.rec.Bind(a.StepID, a.Param, a.Type, a.Text())
	case skill.ActUndo:
		return t.rec.Undo()
	case skill.ActCommit:
		if a.StepID != "" {
			return t.rec.Commit(a.StepID)
		}
	case skill.ActExpect:
		if a.X == nil && a.Target == nil {
			if t.s.secrets.shows(a.Text()) {
				return holdsSecret()
			}
			return t.rec.Expect(nil, a.Text())
		}
	}
	el, about, err := t.element(ctx, a)
	if err != nil {
		return err
	}
	// What becomes a secret is recorded nowhere: it may be what was typed before, or more of it.
	secret := a.Kind.Step() == skill.Type && (a.SecretRef != "" || about.Secret)
	if !secret && t.s.secrets.shows(a.Text()) {
		return holdsSecret()
	}
	if about != nil && about.Framed {
		return badRecord("target", "is a frame: steps in frames are not possible")
	}
	switch a.Kind {
	case skill.ActPick:
		return t.rec.Pick(a.Name, el.Locator, a.Attr, a.Type)
	case skill.ActExpect:
		text := a.Text()
		if text == "" {
			text = about.Says
		}
		if t.s.secrets.shows(text) {
			return badRecord("target", "shows what was typed as a secret")
		}
		return t.rec.Expect(&el.Locator, skill.Clean(text))
	}
	return t.step(ctx, a, el, about)
}

func holdsSecret() error { return badRecord("value", "holds what was typed as a secret") }

// step performs an action that is a step, and records it. A commit that is only marked is not
// performed.
func (t *taught) step(ctx context.Context, a *skill.Action, el *skill.Element, about *found) error {
	s, of := t.s, *a
	if of.Kind == skill.ActCommit {
		of.Kind, of.Commit = skill.ActionKind(skill.Click), true
	}
	value := of.Text()
	switch k := of.Kind.Step(); {
	case k == skill.Navigate:
		if reason := s.scope.Allows(value); reason != "" {
			return badRecord("value", "the address "+string(reason))
		}
	case k == skill.Click && about.Tag == "select" && !of.Commit:
		return badRecord("kind", "this is a list: select one of its options"+among(about.Options))
	case k == skill.Click && about.File:
		return badRecord("target", "is a file chooser, which is refused")
	case k == skill.Click && about.Ticks && !of.Commit:
		on := skill.Text("true")
		if about.Ticked && !about.Radio {
			on = "false"
		}
		of.Kind, of.Value, value = skill.ActionKind(skill.Tick), &on, string(on)
	case k == skill.Tick && !about.Ticks:
		return badRecord("target", "is neither a checkbox nor a radio button")
	case k == skill.Press && about != nil && about.Secret && utf8.RuneCountInString(value) == 1:
		return badRecord("value", "would be recorded as it is: type the whole secret instead")
	case k == skill.Type && !about.Field:
		return badRecord("target", "is no field to type into")
	case k == skill.Select && about.Tag != "select":
		return badRecord("target", "is no list to select from")
	case k == skill.Select && !slices.Contains(about.Choices, value) && !slices.Contains(about.Choices, strings.TrimSpace(value)):
		return badRecord("value", "the list has no such option"+among(about.Options))
	}
	st, err := t.rec.Plan(&of, el, about != nil && about.Wall)
	if err != nil {
		return err
	}
	if a.Kind == skill.ActCommit {
		t.rec.Add(st, el)
		return t.rec.Commit(st.ID)
	}
	former, typed := "", false
	if st.Secret {
		if message := skill.CheckSecret(value); message != "" {
			return badRecord("value", message)
		}
		for _, kept := range t.rec.Steps {
			if len(value) > 2 && strings.Contains(kept.Literal(), value) {
				return badRecord("value", "stands in a step that was recorded before: undo that first")
			}
		}
		former, typed = t.secrets[st.SecretRef]
		t.secrets[st.SecretRef] = value
	}
	if of.Commit {
		s.fresh(ctx) // as the commit of a run: the site hears it once
		s.mu.Lock()
		s.confirm = true
		s.mu.Unlock()
	}
	limit, cancel := context.WithTimeout(ctx, s.step)
	defer cancel()
	if err = s.act(limit, &st, value); err == nil {
		err = s.settle(limit)
	}
	if err == nil && st.Kind == skill.Navigate && s.proxy.refusedHost(s.page.URL()) {
		err = failed(skill.CodeStepFailed, "The outbound guard refuses this address.")
	}
	if of.Commit {
		s.mu.Lock()
		s.confirm = false
		s.mu.Unlock()
		s.proxy.answered()
	}
	if err != nil {
		if typed { // the step that was recorded before stays
			t.secrets[st.SecretRef] = former
		}
		return s.told(ctx, &st, err)
	}
	t.rec.Add(st, el)
	if of.Commit {
		if err := t.rec.Commit(st.ID); err != nil {
			return err
		}
	}
	if of.Param != "" {
		return t.rec.Bind(st.ID, of.Param, of.Type, "")
	}
	return nil
}

// among names some of the options of a list.
func among(options []string) string {
	if len(options) == 0 {
		return ""
	}
	return ": " + strings.Join(options[:min(20, len(options))], ", ")
}

// element finds the element of an action and how it is found again; nil for an action on the page.
func (t *taught) element(ctx context.Context, a *skill.Action) (*skill.Element, *found, error) {
	s := t.s
	k := a.Kind.Step()
	clicks := k == skill.Click || k == skill.Tick || a.Kind == skill.ActCommit
	var given string
	var node playwright.ElementHandle
	missing := badRecord("target", "no element was found")
	get := func(expr string, arg any) error {
		return s.do(ctx, func() error {
			h, err := s.page.EvaluateHandle(expr, arg)
			if err != nil {
				return err
			}
			node = h.AsElement()
			return nil
		})
	}
	switch {
	case a.X != nil:
		if *a.X >= viewWidth || *a.Y >= viewHeight {
			return nil, nil, badRecord("x", "must be on the page")
		}
		expr := atPoint
		if clicks {
			expr = toClick
		}
		if err := get(expr, []any{*a.X, *a.Y}); err != nil {
			return nil, nil, err
		}
	case a.Target != nil:
		limit, cancel := context.WithTimeout(ctx, min(patience, s.step))
		defer cancel()
		l, err := s.locate(limit, a.Target, k == skill.Tick)
		f := new(fault)
		switch {
		case errors.As(err, &f):
			return nil, nil, missing
		case err != nil:
			return nil, nil, err
		}
		if tries := a.Target.Tries(); len(tries) > 0 {
			given = tries[0]
		}
		if err := s.do(ctx, func() (err error) {
			//lint:ignore SA1019 only a handle can be compared with what a selector finds, and the library's other call for one panics
			node, err = l.ElementHandle(playwright.LocatorElementHandleOptions{Timeout: ms(min(patience, s.step))})
			return err
		}); err != nil {
			return nil, nil, err
		}
	case k == skill.Type || k == skill.Press || k == skill.Select || k == skill.Tick:
		if err := get(hasFocus, nil); err != nil {
			return nil, nil, err
		}
		if node == nil && k == skill.Press {
			return nil, nil, nil // a key for the page
		}
		if node == nil {
			return nil, nil, badRecord("target", "required: no field has the focus")
		}
	default:
		return nil, nil, nil
	}
	if node == nil {
		return nil, nil, missing
	}
	return t.describe(ctx, node, given)
}

// describe returns what finds an element again, each proved to find it alone.
func (t *taught) describe(ctx context.Context, node playwright.ElementHandle, given string) (el *skill.Element, about *found, err error) {
	s := t.s
	var raw any
	if err := s.do(ctx, func() (err error) {
		raw, err = node.Evaluate(aboutIt)
		return err
	}); err != nil {
		return nil, nil, err
	}
	if about, err = parseFound(raw); err != nil {
		return nil, nil, err
	}
	about.Options = slices.DeleteFunc(about.Options, s.secrets.shows)
	el = &skill.Element{Type: skill.ParamType(about.Kind), Options: about.Options}
	tries := about.Selectors
	if given != "" {
		tries = append([]string{given}, tries...)
	}
	for i, sel := range tries {
		l := &skill.Locator{Selector: sel}
		if i == maxProofs || len(el.Locator.Tries()) == maxKept {
			break
		}
		if l.Check() != nil || s.secrets.shows(sel) || !t.alone(ctx, s.page.Locator("css="+sel), alone, node) {
			continue
		}
		if el.Locator.Selector == "" {
			el.Locator.Selector = sel
		} else if sel != el.Locator.Selector && !slices.Contains(el.Locator.Candidates, sel) {
			el.Locator.Candidates = append(el.Locator.Candidates, sel)
		}
	}
	if text := skill.Clean(about.Text); text != "" && len(text) < 400 && !strings.Contains(text, "{{") && !s.secrets.shows(text) {
		if t.alone(ctx, s.page.GetByText(text).Filter(playwright.LocatorFilterOptions{Visible: playwright.Bool(true)}), aloneInside, node) {
			el.Locator.Text = text
		}
	}
	if err := s.trouble(); err != nil {
		return nil, nil, err
	}
	if el.Locator.Selector == "" && el.Locator.Text == "" {
		return nil, nil, badRecord("target", "no selector finds this element alone")
	}
	about.Secret = about.Secret || about.Field && t.rec.SecretIn(&el.Locator) != ""
	el.Secret = about.Secret
	return el, about, ctx.Err()
}

const (
	alone       = `(list, e) => list.length === 1 && list[0] === e`
	aloneInside = `(list, e) => list.length === 1 && (list[0] === e || e.contains(list[0]))`
)

// alone proves that a locator finds an element and no other.
func (t *taught) alone(ctx context.Context, l playwright.Locator, proof string, node playwright.ElementHandle) bool {
	is := false
	err := t.s.do(ctx, func() error {
		v, err := l.EvaluateAll(proof, node)
		is, _ = v.(bool)
		return err
	})
	return err == nil && is
}

// shows reports whether a text holds a secret.
func (s *secrets) shows(text string) bool {
	return len(s.forms) > 0 && text != "" && s.clean(text, len(text)+1) != (&secrets{}).clean(text, len(text)+1)
}

// publish takes a picture and updates the session's steps, address and picture for its readers. If
// the page is lost, the session ends. The caller holds the turn.
func (t *taught) publish(ctx context.Context) error {
	var jpeg []byte
	url, title := "", ""
	err := errLost
	if s := t.s; s != nil {
		limit, cancel := context.WithTimeout(ctx, min(shotTimeout, s.step))
		defer cancel()
		err = s.do(limit, func() (err error) {
			title, err = s.title(limit)
			url = s.secrets.clean(s.page.URL(), maxAnyURL)
			return err
		})
		if err == nil {
			jpeg = s.snap(limit)
		}
		if lost := s.trouble(); lost != nil {
			note := s.lossOf()
			if errors.Is(lost, errLeft) {
				s.mu.Lock()
				at := s.leftAt
				s.mu.Unlock()
				note = "The page went to an address that " + string(s.scope.Allows(at)) + "."
			}
			t.stop(skill.RecorderEnded, note)
		}
	}
	t.mu.Lock()
	for _, at := range t.hosts {
		t.rec.Visit(at)
	}
	t.hosts = t.hosts[:0]
	before := t.view
	d := t.rec.Definition()
	v := &t.view
	v.Steps, v.Params, v.CommitStepID, v.ResultFields, v.Assertions, v.TargetHosts, v.Auth = d.Steps, d.Params, d.CommitStepID, d.ResultFields, d.Assertions, d.TargetHosts, d.Auth
	if t.s != nil {
		if err == nil {
			v.URL, v.Title = url, title
		}
		if note := t.s.takeNotes(); note != "" {
			v.Note = note
		} else if len(before.Steps) != len(v.Steps) {
			v.Note = ""
		}
	}
	t.pictured = time.Now()
	last := []byte(nil)
	if n := len(t.shots); n > 0 {
		last = t.shots[n-1].jpeg
	}
	if jpeg != nil && (!bytes.Equal(jpeg, last) || !same(&before, v)) || jpeg == nil && last != nil && !same(&before, v) {
		if jpeg == nil {
			jpeg = last
		}
		t.number++
		v.Shot = "p" + strconv.Itoa(t.number)
		if t.shots = append(t.shots, picture{v.Shot, jpeg}); len(t.shots) > shotsKept {
			t.shots = append([]picture{}, t.shots[1:]...)
		}
		t.stir()
	}
	t.mu.Unlock()
	return ctx.Err()
}

// same compares what changes in a session by an action.
func same(a, b *skill.RecorderSession) bool {
	x, y := *a, *b
	x.ExpiresAt, y.ExpiresAt, x.Shot, y.Shot = time.Time{}, time.Time{}, "", ""
	one, err := json.Marshal(x)
	two, err2 := json.Marshal(y)
	return err == nil && err2 == nil && bytes.Equal(one, two)
}

// finish ends a session and replays what it recorded as a dry run in a fresh page. A session whose
// replay did not land, or was skipped, may be finished again.
func (t *taught) finish(ctx context.Context, q *msg.Record) (*msg.Recorded, error) {
	if err := t.take(ctx); err != nil {
		return nil, err
	}
	defer t.give()
	switch t.status() {
	case skill.RecorderExpired:
		return nil, badRecord("id", "the session has expired")
	case skill.RecorderLive:
		if err := t.publish(ctx); err != nil {
			return nil, err
		}
		t.stop(skill.RecorderEnded, "")
	default:
		t.mu.Lock()
		landed := t.view.DryRun != nil && t.view.DryRun.Status == skill.ReplayLanded
		t.mu.Unlock()
		if landed {
			return t.answer()
		}
	}
	t.touch()
	replay, err := t.replay(ctx, q)
	if err != nil {
		return nil, err
	}
	replays.WithLabelValues(string(replay.Status)).Inc()
	if replay.Status == skill.ReplayLanded { // else it is finished again
		clear(t.secrets)
	}
	t.mu.Lock()
	t.view.DryRun = replay
	t.stir()
	t.mu.Unlock()
	return t.answer()
}

// replay performs the dry run of what was recorded. The error is that of ctx.
func (t *taught) replay(ctx context.Context, q *msg.Record) (*skill.Replay, error) {
	d := t.rec.Definition()
	values := q.Values
	if len(values) == 0 {
		values = t.rec.Examples()
	}
	if len(d.Steps) == 0 || d.CommitStepID == "" && !q.Reads {
		return &skill.Replay{Status: skill.ReplaySkipped, Message: "No commit step is marked: the replay would do everything again. If the skill only reads, finish with reads_only."}, nil
	}
	return t.r.b.replay(ctx, d, values, t.secrets, &skill.Job{Tenant: t.tenant, Residency: t.residency})
}

// replay performs a definition as a dry run with those of these secrets that it names. A definition without a commit step
// is performed whole.
func (b *Browser) replay(ctx context.Context, d *skill.Definition, values json.RawMessage, secrets map[string]string, job *skill.Job) (*skill.Replay, error) {
	failed := func(message string) *skill.Replay { return &skill.Replay{Status: skill.ReplayFailed, Message: message} }
	doc, err := json.Marshal(d)
	if err != nil {
		return nil, err
	}
	given := map[string]string{}
	for _, ref := range d.Auth.SecretRefs {
		given[ref] = secrets[ref]
	}
	auth, err := json.Marshal(map[string]any{"mode": d.Auth.Kind, "secrets": given})
	if err != nil {
		return nil, err
	}
	policy := `{}`
	if d.CommitStepID == "" {
		policy = `{"approval":"none_for_idempotent_reads","risk_level":"low"}`
	}
	parsed, err := skill.Parse(skill.Input{Definition: doc, Policy: json.RawMessage(policy), Auth: auth, OwnerAttested: true, Residency: job.Residency})
	if err != nil {
		return failed("What was recorded is no skill yet: " + err.Error()), nil
	}
	bound, faults, err := parsed.Definition.Bind(ctx, skill.ForDryRun, values)
	switch {
	case err != nil:
		return nil, err
	case len(faults) > 0:
		return nil, skill.InvalidArgs(faults)
	}
	job.Definition, job.Values = parsed.Definition, bound.Values
	job.Open = func(ref string) (string, error) { return given[ref], nil }
	var report *skill.Report
	if d.CommitStepID == "" {
		report, err = b.Read(ctx, job)
	} else {
		var s Session
		if s, report, err = b.Prepare(ctx, job); s != nil {
			s.Close()
		}
	}
	switch {
	case errors.Is(err, ErrUnavailable):
		return nil, &problem.Error{Code: problem.CodeBrowserSkillUnavailable, Detail: "No page is free for the dry run. Finish again.", RetryAfter: 10 * time.Second}
	case err != nil:
		return nil, err
	}
	out := &skill.Replay{Status: skill.ReplayLanded, URL: report.Page.URL, Title: report.Page.Title, Values: report.Page.Values}
	if report.Event == skill.Landed {
		if m := parsed.Definition.Compare(report.Page.URL, report.Page.URL, job.Values, report.Read); m != nil {
			out.Status, out.Code, out.Message = skill.ReplayFailed, skill.CodePrecommitMismatch, "The field of "+m.Field+" does not hold what was typed."
		}
		return out, nil
	}
	if report.Event == skill.Verified {
		return out, nil
	}
	out.Status, out.Message = skill.ReplayFailed, "The steps did not land."
	if f := report.Fault; f != nil {
		out.Code, out.StepID, out.Message = f.Code, f.StepID, f.Message
	} else if report.Event == skill.ChecksFailed {
		out.Code, out.Message = skill.CodeVerificationFailed, "A check does not hold."
	}
	return out, nil
}
