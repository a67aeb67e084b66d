// An echo server with its clients, as Go's standard library writes them. The rule: Go makes its calls without libc, so
// the library serves none of them and changes none of their results.
package main

import (
	"bytes"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"sync"
)

func question(client, round int) []byte {
	text := make([]byte, 1+(client*7919+round*104729)%50000)
	for i := range text {
		text[i] = byte(i*31 + client*7 + round)
	}
	return text
}

func request(address string, client int) int {
	connection, err := net.Dial("tcp", address)
	if err != nil {
		return -1
	}
	defer connection.Close()
	right := 0
	for round := 0; round < 20; round++ {
		sent := question(client, round)
		go connection.Write(sent)
		back := make([]byte, len(sent))
		if _, err := io.ReadFull(connection, back); err == nil && bytes.Equal(sent, back) {
			right++
		}
	}
	return right
}

func serverOfGoroutines() {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		fmt.Println(err)
		return
	}
	go func() {
		for {
			connection, err := listener.Accept()
			if err != nil {
				return
			}
			go func() {
				io.Copy(connection, connection)
				connection.Close()
			}()
		}
	}()
	var group sync.WaitGroup
	right := make([]int, 12)
	for client := range right {
		group.Add(1)
		go func(client int) {
			right[client] = request(listener.Addr().String(), client)
			group.Done()
		}(client)
	}
	group.Wait()
	fmt.Println("right:", right)
	listener.Close()
}

func otherPrograms() {
	for i := 0; i < 3; i++ {
		command := exec.Command("sh", "-c", fmt.Sprintf("cat; exit %d", i))
		command.Stdin = bytes.NewBufferString("through a pipe")
		out, err := command.Output()
		fmt.Printf("%q %v\n", out, err)
	}
}

func main() {
	cases := []struct {
		name string
		run  func()
	}{
		{"goroutines_serve_all_their_clients", serverOfGoroutines},
		{"goroutines_start_other_programs", otherPrograms},
	}
	for _, c := range cases {
		if len(os.Args) == 2 && os.Args[1] == "--cases" {
			fmt.Printf("%s\tpasses\n", c.name)
		} else if len(os.Args) == 2 && os.Args[1] == c.name {
			c.run()
			fmt.Println("done")
			return
		}
	}
	if len(os.Args) != 2 || os.Args[1] != "--cases" {
		fmt.Fprintln(os.Stderr, "usage: echo --cases | CASE")
		os.Exit(2)
	}
}
