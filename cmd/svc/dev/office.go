package dev

import (
	"context"
	"encoding/json"
	"errors"
	"strings"

	"agentsvc/persistence/store"
	"agentsvc/schemas/api"
	"agentsvc/schemas/id"
	"agentsvc/schemas/problem"
	"agentsvc/schemas/skill"
	"agentsvc/transport/browser/site"
)

// The old back office has pages and no API: the agent clerk cancels its orders with a browser
// skill, which a person approves.
const (
	clerkAgent  = "clerk"
	officeSkill = "cancel-order"
	officeCall  = `/call browser_skill:cancel-order.run {"order":"1001","cause":"The customer asked","reason":"The customer wrote twice."}`
)

// openOffice serves the back office of svc dev. Its port stays the same as long as it is free.
func openOffice(s *sample) (*local, error) {
	return openLocal(s.OfficeURL, site.New(site.Options{}))
}

// officeDefinition is as a recording of the back office makes it, with result fields and checks.
const officeDefinition = `{
 "start_url": "URL/login", "target_hosts": ["HOST"],
 "auth": {"kind": "credentials", "secret_refs": ["user", "password"]},
 "params": [
  {"name": "order", "type": "string", "label": "Order number", "required": true, "allow_in_url": true, "max_length": 20, "example": "1001"},
  {"name": "cause", "type": "enum", "label": "Why it is cancelled", "required": true, "enum": ["The customer asked", "Out of stock", "Suspected fraud"]},
  {"name": "note", "type": "string", "label": "A note for colleagues", "max_length": 500}],
 "steps": [
  {"id": "user", "phase": "auth", "kind": "type", "target": {"selector": "label:has-text(\"E-mail\") input", "candidates": ["#user"]}, "value": null, "secret": true, "secret_ref": "user"},
  {"id": "password", "phase": "auth", "kind": "type", "target": {"selector": "label:has-text(\"Password\") input", "candidates": ["#password"]}, "value": null, "secret": true, "secret_ref": "password"},
  {"id": "enter", "phase": "auth", "kind": "click", "target": {"selector": "button:has-text(\"Sign in\")", "candidates": ["#sign-in"]}},
  {"id": "open", "kind": "navigate", "value": "URL/orders/{{order}}"},
  {"id": "begin", "kind": "click", "target": {"selector": "a:has-text(\"Cancel this order\")", "candidates": ["#cancel"]}},
  {"id": "cause", "kind": "select", "target": {"selector": "label:has-text(\"Reason\") select", "candidates": ["#reason"]}, "param": "cause"},
  {"id": "note", "kind": "type", "target": {"selector": "label:has-text(\"Note\") textarea", "candidates": ["#note"]}, "param": "note"},
  {"id": "commit", "kind": "click", "target": {"selector": "button:has-text(\"Cancel the order\")", "candidates": ["#confirm"], "text": "Cancel the order"}}],
 "commit_step_id": "commit",
 "assertions": [{"kind": "element_text", "selector": "#status", "value": "cancelled", "match": "equals"}],
 "result_fields": [{"name": "order", "selector": "#number"}, {"name": "refund", "selector": "#total", "type": "number"}],
 "compensation": []
}`

// makeOffice makes the skill and the agent that has it. A skill whose site has another address
// now is made anew; one that the tenant has deleted stays deleted.
func (s *sample) makeOffice(ctx context.Context, view store.View, tx *store.Tx, url string) error {
	if err := s.makeAgent(ctx, view, tx, &s.ClerkID, clerkAgent, &api.AgentCreate{Name: "Clerk", Emoji: "🗂️", Description: "Works in the old back office with a browser, on the built-in simulated model."},
		map[string]any{"model": simulated, "instructions": "You cancel orders in the old back office."}); err != nil {
		return err
	}
	if s.SkillID != "" && s.OfficeURL == url {
		return nil
	}
	skills, err := view.Skills(ctx, id.SkillID{}, store.All)
	if err != nil {
		return err
	}
	there := false
	for _, k := range skills {
		if k.Slug == officeSkill { // its site has moved, or the file was lost
			switch err := tx.DeleteSkill(ctx, k.ID); {
			case errors.Is(err, problem.New(problem.CodeInUse, "")): // a killed process left a commit, whose run ends first
				return nil
			case err != nil:
				return err
			}
			there = true
		}
	}
	if s.OfficeURL = url; s.SkillID != "" && !there {
		return nil
	}
	_, host, _ := strings.Cut(url, "://")
	secrets, err := json.Marshal(map[string]any{"mode": "credentials", "secrets": map[string]string{"user": site.User, "password": site.Password}})
	if err != nil {
		return err
	}
	parsed, err := skill.Parse(skill.Input{Definition: json.RawMessage(strings.NewReplacer("URL", url, "HOST", host).Replace(officeDefinition)), Auth: secrets, OwnerAttested: true})
	if err != nil {
		return err
	}
	slug := officeSkill
	made, err := tx.CreateSkill(ctx, &api.SkillCreate{Name: "Cancel an order in the old back office", Slug: &slug, Description: "Cancels an order of the shop in its back office and refunds it."}, parsed)
	if err != nil {
		return err
	}
	s.SkillID = made.ID.String()
	u, err := id.Parse(s.ClerkID)
	if err != nil {
		return err
	}
	_, err = tx.GrantSkill(ctx, made.ID, &api.SkillGrantCreate{AgentID: &id.AgentID{UUID: u}, Ops: []api.SkillGrantOp{api.GrantRun, api.GrantDryRun}})
	var refused *problem.Error
	if errors.As(err, &refused) {
		return nil // the tenant has archived the clerk
	}
	return err
}
