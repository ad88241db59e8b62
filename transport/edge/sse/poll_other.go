//go:build !linux

package sse

import "net"

// pollers are empty here: every stream is a pump.
type pollers struct{}

func (*pollers) start(*Streams, int) error          { return nil }
func (*pollers) stop()                              {}
func (*pollers) take(*Conn, net.Conn) (bool, error) { return false, nil }
