package testkit

import (
	"fmt"
	"syscall"
	"testing"
)

// Reserve returns an address of this machine that is given to no other process until leave is called, whether or not a
// server listens there; while none does, connections are refused. A socket is bound to it that never listens: Linux
// then does not hand out the port for port 0, but accepts a bind to it by number.
func Reserve() (addr string, leave func(), err error) {
	s, err := syscall.Socket(syscall.AF_INET, syscall.SOCK_STREAM, 0)
	if err != nil {
		return "", nil, err
	}
	syscall.CloseOnExec(s)
	leave = func() { syscall.Close(s) }
	var bound syscall.Sockaddr
	err = syscall.SetsockoptInt(s, syscall.SOL_SOCKET, syscall.SO_REUSEADDR, 1)
	if err == nil {
		err = syscall.Bind(s, &syscall.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}})
	}
	if err == nil {
		bound, err = syscall.Getsockname(s)
	}
	if err != nil {
		leave()
		return "", nil, err
	}
	return fmt.Sprintf("127.0.0.1:%d", bound.(*syscall.SockaddrInet4).Port), leave, nil
}

// Reserved is Reserve until the test ends.
func Reserved(t testing.TB) string {
	t.Helper()
	addr, leave, err := Reserve()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(leave)
	return addr
}
