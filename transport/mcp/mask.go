package mcp

import "agentsvc/schemas/redact"

// redacted is the text that an approver may leave in edited arguments: see tool.Unmask.
const redacted = redact.Mark

// mask hides one credential.
type mask = redact.Known

func newMask(secret string) *mask { return redact.NewKnown(secret) }
