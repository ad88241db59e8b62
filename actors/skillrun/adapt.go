package skillrun

import (
	"context"

	"agentsvc/schemas/skill"
)

// Executor is a Browser whose sessions have a type of their own, and whose Close may take time.
type Executor[S Session] interface {
	Available() error
	Prepare(ctx context.Context, j *skill.Job) (S, *skill.Report, error)
	Read(ctx context.Context, j *skill.Job) (*skill.Report, error)
	Compensate(ctx context.Context, j *skill.Job) (*skill.Report, error)
}

// Adapt returns an executor as a Browser. beside runs the end of a session beside its caller.
func Adapt[S Session](e Executor[S], beside func(func())) Browser { return adapted[S]{e, beside} }

type adapted[S Session] struct {
	Executor[S]
	beside func(func())
}

// Prepare returns a nil Session where the executor has none.
func (a adapted[S]) Prepare(ctx context.Context, j *skill.Job) (Session, *skill.Report, error) {
	s, r, err := a.Executor.Prepare(ctx, j)
	if any(s) == nil {
		return nil, r, err
	}
	return adaptedPage{s, a.beside}, r, err
}

type adaptedPage struct {
	Session
	beside func(func())
}

// Close does not block.
func (p adaptedPage) Close() { p.beside(p.Session.Close) }
