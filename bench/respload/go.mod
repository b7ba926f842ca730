module github.com/countd/countd/bench/respload

go 1.26
