package browser

import (
	"context"
	"encoding/json"
	"errors"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/playwright-community/playwright-go"

	"agentsvc/schemas/pause"
	"agentsvc/schemas/skill"
)

// within runs a part of a job within the job's time and turns how it ended into its report. The
// error is that of ctx.
func (s *session) within(ctx context.Context, part string, do func(context.Context, *skill.Report) error) (*skill.Report, error) {
	limit, cancel := context.WithTimeout(ctx, s.b.cfg.JobTimeout)
	defer cancel()
	r := &skill.Report{}
	before := s.shots
	err := do(limit, r)
	r.Shots = s.shots - before
	f := new(fault)
	switch {
	case err == nil:
	case ctx.Err() != nil && part != "commit" && part != "verify":
		return nil, ctx.Err()
	case errors.Is(err, errLeft):
		s.mu.Lock()
		at := s.leftAt
		s.mu.Unlock()
		r.Event, r.Fault = skill.LeftScope, &skill.Fault{Code: skill.CodeOutOfScope, URL: s.secrets.clean(at, maxAnyURL), Message: "The address " + string(s.scope.Allows(at)) + "."}
	case errors.As(err, &f):
		r.Event, r.Fault = skill.Fails, &f.Fault
	case errors.Is(err, errLost):
		r.Event, r.Fault = skill.Lost, &skill.Fault{Code: skill.CodeStepFailed, Message: s.lossOf()}
	default: // the job's time
		r.Event, r.Fault = skill.Fails, &skill.Fault{Code: skill.CodeStepFailed, Message: "This took longer than " + s.b.cfg.JobTimeout.String() + "."}
	}
	parts.WithLabelValues(part, string(r.Event)).Inc()
	return r, nil
}

// lossOf says why a session was lost.
func (s *session) lossOf() string {
	select {
	case <-s.e.dead:
		if errors.Is(s.e.why, errMemory) {
			return "The browser needed more memory than it may have."
		}
		return "The browser ended."
	default:
	}
	select {
	case <-s.proxy.cut:
		return "The connection was cut before the site answered."
	default:
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.popups > maxPopups {
		return "The page opened too many popups."
	}
	return "The page ended: it crashed, was closed or needed too much memory."
}

// run performs steps in order. Those behind one that fails are skipped.
func (s *session) run(ctx context.Context, r *skill.Report, steps []skill.Step) error {
	for i := range steps {
		out, err := s.perform(ctx, &steps[i])
		r.Steps = append(r.Steps, out)
		if err != nil {
			for j := i + 1; j < len(steps); j++ {
				r.Steps = append(r.Steps, skill.StepResult{ID: steps[j].ID, Kind: steps[j].Kind, Label: label(&steps[j]), Status: skill.StepSkipped})
			}
			return s.expiredAt(ctx, &steps[i], err)
		}
	}
	return nil
}

// expiredAt turns a main step that found no element on a page with the sign-in's password field
// into session_expired.
func (s *session) expiredAt(ctx context.Context, st *skill.Step, err error) error {
	f := new(fault)
	if !errors.As(err, &f) || f.Code != skill.CodeNotFound || st.InSignIn() {
		return err
	}
	if walled, wallErr := s.walled(ctx); wallErr != nil || !walled {
		return err
	}
	out := failed(skill.CodeSessionExpired, "The page asks to sign in.")
	out.StepID = st.ID
	return out
}

// signIn opens the start page and signs in.
func (s *session) signIn(ctx context.Context, r *skill.Report) error {
	d := s.job.Definition
	if d.Auth.Kind == skill.AuthCookies {
		if err := s.setCookies(ctx); err != nil {
			return err
		}
	}
	limit, cancel := context.WithTimeout(ctx, s.step)
	defer cancel()
	if err := s.goTo(limit, d.StartURL); err != nil {
		return err
	}
	if err := s.settle(limit); err != nil {
		return err
	}
	if err := s.run(ctx, r, d.SignInSteps()); err != nil {
		return err
	}
	return s.signedIn(ctx)
}

// setCookies gives the browser the cookies of the skill that fit its hosts.
func (s *session) setCookies(ctx context.Context) error {
	d := s.job.Definition
	for _, ref := range d.Auth.SecretRefs {
		if s.job.Open == nil {
			return failed(skill.CodeStepFailed, "The skill has no such secret.")
		}
		raw, err := s.job.Open(ref)
		if err != nil {
			return failed(skill.CodeStepFailed, "The secret "+ref+" could not be opened.")
		}
		cookies, message := skill.ParseCookies(raw)
		if message != "" {
			return failed(skill.CodeSessionExpired, "The stored cookies cannot be read.")
		}
		set := make([]playwright.OptionalCookie, 0, len(cookies))
		for i := range cookies {
			c := &cookies[i]
			fits := false
			for _, host := range d.TargetHosts {
				fits = fits || c.Fits(host)
			}
			if !fits {
				continue
			}
			s.secrets.add(c.Value)
			k := playwright.OptionalCookie{Name: c.Name, Value: c.Value, Domain: playwright.String(c.Domain), Path: playwright.String(c.Path), HttpOnly: playwright.Bool(c.HTTPOnly), Secure: playwright.Bool(c.Secure)}
			if c.Expires > 0 {
				k.Expires = playwright.Float(c.Expires)
			}
			switch c.SameSite {
			case "Strict":
				k.SameSite = playwright.SameSiteAttributeStrict
			case "Lax":
				k.SameSite = playwright.SameSiteAttributeLax
			case "None":
				k.SameSite = playwright.SameSiteAttributeNone
			}
			set = append(set, k)
		}
		if len(set) == 0 {
			return failed(skill.CodeSessionExpired, "None of the stored cookies is for a host of the skill.")
		}
		limit, cancel := context.WithTimeout(ctx, s.step)
		err = s.do(limit, func() error { return s.context.AddCookies(set) })
		cancel()
		switch {
		case errors.Is(err, errLost):
			return err
		case err != nil:
			return failed(skill.CodeSessionExpired, "The browser does not take the stored cookies.")
		}
	}
	return nil
}

// signedIn waits until the login wall is gone: the field of the last password, or with cookies
// any password field.
func (s *session) signedIn(ctx context.Context) error {
	limit, cancel := context.WithTimeout(ctx, s.step)
	defer cancel()
	for {
		walled, err := s.walled(limit)
		switch {
		case err == nil && !walled:
			return nil
		case errors.Is(err, errLost), errors.Is(err, errLeft):
			return err
		}
		if !pause.For(limit, 50*time.Millisecond) {
			if ctx.Err() != nil {
				return ctx.Err()
			}
			return failed(skill.CodeSessionExpired, "The site still asks to sign in.")
		}
	}
}

// walled reports whether the page shows the login wall.
func (s *session) walled(ctx context.Context) (bool, error) {
	var fields []playwright.Locator
	var named playwright.Locator
	switch {
	case s.wall != nil:
		for _, sel := range s.wall.Target.Tries() {
			fields = append(fields, s.page.Locator("css="+sel))
		}
		if text := s.wall.Target.Text; text != "" {
			named = s.page.GetByText(text)
			fields = append(fields, named)
		}
	case s.job.Definition.Auth.Kind == skill.AuthCookies:
		fields = append(fields, s.page.Locator("css=input[type=password]"))
	}
	shown := false
	for _, f := range fields {
		if err := s.do(ctx, func() error {
			v, err := f.Filter(playwright.LocatorFilterOptions{Visible: playwright.Bool(true)}).EvaluateAll(walls, f == named)
			shown = shown || v == true
			return err
		}); err != nil {
			return false, err
		}
	}
	return shown, nil
}

// walls reports whether one of some elements is a field that a selector found, or a visible password field, by its label or itself.
const walls = `(all, named) => {` + field + `return all.some(e => !named && e.matches('input') || field(e).type === 'password' && field(e).getClientRects().length > 0) }`

// prepare performs everything before the commit.
func (s *session) prepare(ctx context.Context) (*skill.Report, error) {
	return s.within(ctx, "prepare", func(ctx context.Context, r *skill.Report) error {
		if err := s.signIn(ctx, r); err != nil {
			return err
		}
		before, commit, _ := s.job.Definition.Split()
		if err := s.run(ctx, r, before); err != nil {
			return err
		}
		if commit != nil && commit.Target != nil {
			limit, cancel := context.WithTimeout(ctx, s.step)
			defer cancel()
			if _, err := s.locate(limit, commit.Target, false); err != nil {
				return s.expiredAt(ctx, commit, s.told(ctx, commit, err))
			}
		}
		var err error
		if r.Read, err = s.readBack(ctx); err != nil {
			return err
		}
		r.Event = skill.Landed
		r.Page, err = s.look(ctx, s.shotName("precommit"))
		for name, value := range r.Read {
			r.Page.Values[name] = s.secrets.clean(value, maxText)
		}
		return err
	})
}

// shotName returns a name for a screenshot that no step has.
func (s *session) shotName(name string) string {
	d := s.job.Definition
	for _, steps := range [][]skill.Step{d.Steps, d.Compensation} {
		for i := range steps {
			if steps[i].ID == name {
				return s.shotName(name + "_")
			}
		}
	}
	return name
}

// readBack reads the bound fields again, of the sign-in too, because its page may be that of the commit, and returns what
// they hold by parameter. A field that is no longer on the page, as in a form of several pages, keeps what it held when it
// was filled. Of the fields of one parameter, one that holds another
// value than the parameter's counts.
func (s *session) readBack(ctx context.Context) (map[string]string, error) {
	steps := s.job.Definition.BeforeCommit()
	now := make([]*string, len(steps))
	err := together(len(steps), func(i int) (err error) {
		st := &steps[i]
		want, there := s.job.Values.Text(st.Param)
		if st.Param == "" || !there || st.Target == nil {
			return nil
		}
		now[i], err = s.first(ctx, st.Target.Tries(), st.Kind == skill.Tick, holdsFirst, want)
		return err
	})
	read := map[string]string{}
	for i := range steps {
		name := steps[i].Param
		text, there := s.read[steps[i].ID]
		if now[i] != nil {
			text, there = *now[i], true
		}
		want, _ := s.job.Values.Text(name)
		if before, known := read[name]; there && (!known || before == want) {
			read[name] = text
		}
	}
	return read, err
}

// first runs script on the elements of each selector in turn and returns the first text. It looks at visible elements only; if
// none gives a text, or hidden is set, it looks at all elements. It returns nil if no element gives a text. The error is errLost
// or errLeft.
func (s *session) first(ctx context.Context, selectors []string, hidden bool, script, arg string) (*string, error) {
	if !hidden {
		text, err := s.firstOf(ctx, selectors, script, arg, func(l playwright.Locator) playwright.Locator {
			return l.Filter(playwright.LocatorFilterOptions{Visible: playwright.Bool(true)})
		})
		if text != nil || err != nil {
			return text, err
		}
	}
	return s.firstOf(ctx, selectors, script, arg, func(l playwright.Locator) playwright.Locator { return l })
}

func (s *session) firstOf(ctx context.Context, selectors []string, script, arg string, among func(playwright.Locator) playwright.Locator) (*string, error) {
	for _, sel := range selectors {
		var v any
		limit, cancel := context.WithTimeout(ctx, s.step)
		err := s.do(limit, func() (err error) {
			v, err = among(s.page.Locator("css="+sel)).EvaluateAll(script, arg)
			return err
		})
		cancel()
		if errors.Is(err, errLost) || errors.Is(err, errLeft) {
			return nil, err
		}
		if t, ok := v.(string); ok && err == nil {
			return &t, nil
		}
	}
	return nil, nil
}

// together calls f for each of n at the same time, because the answers of the driver take longer to come than
// to make.
func together(n int, f func(i int) error) error {
	var wg sync.WaitGroup
	errs := make([]error, n)
	for i := range n {
		wg.Go(func() { errs[i] = f(i) })
	}
	wg.Wait()
	return errors.Join(errs...)
}

// look reads address, title and picture of the page.
func (s *session) look(ctx context.Context, shot string) (skill.Page, error) {
	p := skill.Page{Values: map[string]string{}}
	ctx, cancel := context.WithTimeout(ctx, s.step)
	defer cancel()
	err := s.do(ctx, func() (err error) {
		p.Title, err = s.title(ctx)
		p.URL = s.secrets.clean(s.page.URL(), maxAnyURL)
		return err
	})
	if err != nil {
		if t := s.trouble(); t != nil {
			return p, t
		}
		f := failed(skill.CodeStepFailed, "The page does not answer.")
		return p, f
	}
	p.Shot = s.shot(ctx, shot)
	return p, s.trouble()
}

// Commit implements Session.
func (s *session) Commit(ctx context.Context) *skill.Report {
	_, commit, _ := s.job.Definition.Split()
	begun := false
	r, _ := s.within(ctx, "commit", func(ctx context.Context, r *skill.Report) error {
		if commit == nil {
			return failed(skill.CodeStepFailed, "The skill has no commit step.")
		}
		if err := s.trouble(); err != nil {
			return err
		}
		s.fresh(ctx)
		if err := s.trouble(); err != nil {
			return err
		}
		begun = true
		s.mu.Lock()
		s.confirm, s.failed = true, false
		clear(s.inFlight)
		s.mu.Unlock()
		out, err := s.perform(ctx, commit)
		// What the page sends while its picture is taken belongs to the commit, and is waited for too.
		shots := s.shots
		for more, again := err == nil, 0; more && err == nil && again < 3; again++ {
			if err = s.answered(ctx); err == nil {
				began := s.requests()
				s.shots = shots // the same picture anew
				out.Shot = s.shot(ctx, commit.ID)
				more = s.requests() != began
			}
		}
		if err == nil && out.Shot == "" { // a browser that died may not have told of a request
			err = s.answered(ctx)
		}
		s.mu.Lock()
		s.confirm = false
		s.mu.Unlock()
		if out.Note == "" {
			out.Note = s.takeNotes()
		}
		if err != nil {
			out.Status = skill.StepFailed
			if s.trouble() == nil && out.Shot == "" {
				out.Shot = s.shot(ctx, commit.ID)
			}
			r.Steps = append(r.Steps, out)
			return err
		}
		s.proxy.answered()
		r.Steps = append(r.Steps, out)
		r.Event = skill.Clicked
		return s.trouble()
	})
	if !begun && r.Fault != nil {
		r.Fault.Message += " Nothing was clicked."
	}
	return r
}

// answered waits until the site has answered what the commit sent. errLost: it did not.
func (s *session) answered(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, s.step)
	defer cancel()
	err := s.settle(ctx)
	s.mu.Lock()
	waits, cut := len(s.inFlight) > 0, s.failed
	s.mu.Unlock()
	select {
	case <-s.proxy.cut:
		cut = true
	default:
	}
	switch {
	case errors.Is(err, errLeft):
		return err
	case err != nil, waits, cut:
		return errLost
	}
	return nil
}

// Verify implements Session.
func (s *session) Verify(ctx context.Context) *skill.Report {
	_, _, after := s.job.Definition.Split()
	r, _ := s.within(ctx, "verify", func(ctx context.Context, r *skill.Report) error {
		if err := s.finish(ctx, r, after); r.Event == "" {
			return err
		}
		return nil // the checks have decided what became of the commit
	})
	return r
}

// finish performs the last steps, the checks and the result fields. The event is set once the checks are made. A picture that
// cannot be taken fails nothing.
func (s *session) finish(ctx context.Context, r *skill.Report, steps []skill.Step) error {
	if err := s.run(ctx, r, steps); err != nil {
		return err
	}
	ok, err := s.check(ctx, r)
	if err != nil {
		return err
	}
	if r.Event = skill.Verified; !ok {
		r.Event = skill.ChecksFailed
	}
	if err := s.results(ctx, r); err != nil {
		return err
	}
	if page, err := s.look(ctx, s.shotName("result")); err == nil {
		r.Page = page
	}
	return nil
}

// readAll performs a skill that only reads.
func (s *session) readAll(ctx context.Context) (*skill.Report, error) {
	return s.within(ctx, "read", func(ctx context.Context, r *skill.Report) error {
		if err := s.signIn(ctx, r); err != nil {
			return err
		}
		return s.finish(ctx, r, s.job.Definition.MainSteps())
	})
}

// compensate performs the compensation steps.
func (s *session) compensate(ctx context.Context) (*skill.Report, error) {
	return s.within(ctx, "compensate", func(ctx context.Context, r *skill.Report) error {
		if err := s.signIn(ctx, r); err != nil {
			return err
		}
		if err := s.run(ctx, r, s.job.Definition.Compensation); err != nil {
			return err
		}
		r.Event = skill.Compensated
		if page, err := s.look(ctx, s.shotName("compensated")); err == nil {
			r.Page = page
		}
		return nil
	})
}

// check runs the assertions in order. The first that does not hold is waited for; once one has
// failed, the others are only looked at.
func (s *session) check(ctx context.Context, r *skill.Report) (bool, error) {
	all := true
	for i := range s.job.Definition.Assertions {
		c := &s.job.Definition.Assertions[i]
		limit, cancel := context.WithTimeout(ctx, s.step)
		out := skill.CheckResult{Kind: c.Kind, Expected: c.Value}
		if c.Kind == skill.ElementPresent {
			out.Expected = c.Selector
		}
		for {
			actual, ok, err := s.actual(limit, c)
			if errors.Is(err, errLost) || errors.Is(err, errLeft) {
				cancel()
				return false, err
			}
			if err == nil {
				out.OK, out.Actual = ok, actual
			}
			if out.OK || !all || !pause.For(limit, 50*time.Millisecond) {
				break
			}
		}
		cancel()
		out.Actual = s.secrets.clean(out.Actual, maxActual)
		all = all && out.OK
		r.Checks = append(r.Checks, out)
		if ctx.Err() != nil {
			return false, ctx.Err()
		}
	}
	return all, nil
}

// shown returns what the first of some elements shows; null: there is none.
const shown = `all => {
  const e = all[0];
  return e ? String('value' in e && e.localName !== 'li' && e.localName !== 'button' ? e.value : e.innerText).slice(0, 10000) : null;
}`

// actual reads what a check is about. Text is compared with spaces as one sees them.
func (s *session) actual(ctx context.Context, c *skill.Check) (actual string, ok bool, err error) {
	switch c.Kind {
	case skill.URLContains:
		return s.page.URL(), c.Holds(s.page.URL()), s.trouble()
	case skill.TextPresent:
		var text string
		err = s.do(ctx, func() error {
			v, err := s.page.Evaluate("() => document.body ? document.body.innerText.slice(0, 1000000) : ''", nil)
			text, _ = v.(string)
			return err
		})
		if text = spaced(text); c.Holds(text) || strings.Contains(text, spaced(c.Value)) {
			return c.Value, true, err
		}
		return text, false, err
	}
	found := false
	err = s.do(ctx, func() error {
		v, err := s.page.Locator("css=" + c.Selector).Filter(playwright.LocatorFilterOptions{Visible: playwright.Bool(true)}).EvaluateAll(shown)
		actual, found = v.(string)
		return err
	})
	switch {
	case err != nil || !found:
		return "not found", false, err
	case c.Kind == skill.ElementPresent:
		return "found", true, nil
	}
	actual = spaced(actual)
	return actual, c.Holds(actual), nil
}

func spaced(s string) string { return strings.Join(strings.Fields(skill.Clean(s)), " ") }

// attribute returns what a result field shows of the first of some elements; null: nothing.
const attribute = `(all, attr) => {
  const e = all[0], v = !e ? null : attr === 'href' ? e.href : attr === 'value' ? e.value : e.innerText;
  return v === undefined || v === null ? null : String(v).slice(0, 20000);
}`

// results reads the result fields: null for one that is not on the page, or is no number. A number in which a secret was
// found is null too: what is left of it would be another number. It reports those that it has read also if the page ends meanwhile.
func (s *session) results(ctx context.Context, r *skill.Report) error {
	fields := s.job.Definition.ResultFields
	if len(fields) == 0 {
		return nil
	}
	texts := make([]*string, len(fields))
	ended := together(len(fields), func(i int) (err error) {
		f := &fields[i]
		texts[i], err = s.first(ctx, append([]string{f.Selector}, f.Candidates...), false, attribute, string(f.Attr))
		return err
	})
	out := map[string]any{}
	for i, text := range texts {
		f := &fields[i]
		out[f.Name] = nil
		if text == nil || f.Type != skill.String && f.Type != "" && s.secrets.shows(*text) {
			continue
		}
		out[f.Name] = typed(f.Type, s.secrets.clean(strings.TrimSpace(*text), maxText))
	}
	raw, err := json.Marshal(out)
	if err != nil {
		return failed(skill.CodeStepFailed, "The result cannot be written.")
	}
	r.Result = raw
	return ended
}

var figure = regexp.MustCompile(`[-+]?[0-9][0-9.,' \x{00a0}\x{202f}]*`)

// typed returns a text as its type: a number is the first in the text, with the separators of
// thousands left out; null if there is none.
func typed(t skill.ParamType, text string) any {
	if t != skill.Number && t != skill.Integer {
		return text
	}
	n, ok := numberIn(text)
	if !ok {
		return nil
	}
	f, err := strconv.ParseFloat(n, 64)
	if err != nil || t == skill.Integer && strings.Contains(n, ".") && f != float64(int64(f)) {
		return nil
	}
	if t == skill.Integer {
		if i, err := strconv.ParseInt(strings.SplitN(n, ".", 2)[0], 10, 64); err == nil {
			return i
		}
		return nil
	}
	return json.Number(n)
}

// numberIn reads the first number of a text. A comma or point that is the last separator and has
// other than three digits behind it is the decimal point; with both in the text, the last one is.
func numberIn(text string) (string, bool) {
	s := strings.TrimRight(figure.FindString(text), ".,' \u00a0\u202f")
	if s == "" {
		return "", false
	}
	point := strings.LastIndexAny(s, ".,")
	decimal := false
	if point >= 0 {
		other := strings.IndexByte(".,", s[point]) ^ 1
		both := strings.IndexByte(s, ".,"[other]) >= 0
		once := strings.Count(s, s[point:point+1]) == 1
		decimal = once && (both || s[point] == '.' || len(s)-point-1 != 3)
	}
	var b strings.Builder
	for i := 0; i < len(s); i++ {
		switch c := s[i]; {
		case i == point && decimal:
			b.WriteByte('.')
		case c >= '0' && c <= '9', i == 0 && c == '-':
			b.WriteByte(c)
		}
	}
	n := b.String()
	neg := strings.HasPrefix(n, "-")
	n = strings.TrimLeft(strings.TrimPrefix(n, "-"), "0")
	if n == "" || n[0] == '.' {
		n = "0" + n
	}
	if strings.Contains(n, ".") {
		n = strings.TrimRight(strings.TrimRight(n, "0"), ".")
	}
	if neg && n != "0" {
		n = "-" + n
	}
	return n, true
}
