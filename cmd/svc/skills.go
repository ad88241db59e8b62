package main

import (
	"context"

	"agentsvc/cluster"
	"agentsvc/persistence/store"
	"agentsvc/schemas/id"
	"agentsvc/schemas/msg"
)

// secrets opens the secrets of browser skills, with an audit row for each.
type secrets struct{ tables *store.Store }

func (k secrets) Open(ctx context.Context, t id.TenantID, of id.SkillID, revision int, run id.SkillRunID, ref string) (string, error) {
	return k.tables.OpenSkillSecret(ctx, store.By{Tenant: t, Actor: msg.System}, of, revision, run, ref)
}

// skillRunsAt asks the actors of runs of browser skills.
type skillRunsAt struct{ node *cluster.Node }

func (a skillRunsAt) ask(ctx context.Context, t id.TenantID, run id.SkillRunID, message any) (any, error) {
	return a.node.Ask(ctx, cluster.Address{Kind: msg.KindSkillRun, Tenant: t, ID: run.UUID}, message)
}
