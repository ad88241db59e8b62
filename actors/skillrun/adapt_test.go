package skillrun

import (
	"context"
	"errors"
	"testing"

	"agentsvc/schemas/skill"
)

type tab struct{ closed int }

func (*tab) Commit(context.Context) *skill.Report { return nil }
func (*tab) Verify(context.Context) *skill.Report { return nil }
func (t *tab) Close()                             { t.closed++ }

type executor struct{ tab Session }

func (executor) Available() error { return nil }
func (e executor) Prepare(context.Context, *skill.Job) (Session, *skill.Report, error) {
	if e.tab == nil {
		return nil, nil, errors.New("none")
	}
	return e.tab, &skill.Report{Event: skill.Landed}, nil
}
func (executor) Read(context.Context, *skill.Job) (*skill.Report, error)       { return nil, nil }
func (executor) Compensate(context.Context, *skill.Job) (*skill.Report, error) { return nil, nil }

// A session is closed beside its caller, and none stays none.
func TestAdapt(t *testing.T) {
	t.Parallel()
	var later []func()
	opened := &tab{}
	s, r, err := Adapt[Session](executor{opened}, func(f func()) { later = append(later, f) }).Prepare(t.Context(), nil)
	if err != nil || r.Event != skill.Landed {
		t.Fatal(r, err)
	}
	s.Close()
	if opened.closed != 0 || len(later) != 1 {
		t.Errorf("closed %d times, %d later", opened.closed, len(later))
	}
	if later[0](); opened.closed != 1 {
		t.Errorf("closed %d times", opened.closed)
	}
	if s, _, err := Adapt[Session](executor{}, nil).Prepare(t.Context(), nil); s != nil || err == nil {
		t.Errorf("%v, %v", s, err)
	}
}
