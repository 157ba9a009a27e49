"""The scheduler over real sockets: batches that wait at instances which execute others."""

import asyncio

from nereid.pb import nereid_pb2 as pb
from tests.support.scheduler.scheduler_world import (
    LIMIT_S,
    Executor,
    Gateway,
    World,
    numbers_of,
    request,
)


async def measured(it: World, gateway: Gateway, **how: object) -> Executor:
    """An executor that has executed something, faster than it was sent there."""
    executor = await it.executor("first", hold=True, **how)
    future = gateway.send(request(0, 0))
    instance, batch = await executor.batch()
    instance.response(batch)
    await asyncio.wait_for(future, LIMIT_S)
    return executor


async def test_a_batch_behind_one_that_takes_long_goes_to_the_instance_that_is_free(
    mesh: World,
) -> None:
    gateway = await mesh.gateway()
    slow = await measured(mesh, gateway, withdrawals=True)
    assert slow.withdrawals is not None
    # In one frame: the second is sent in the same turn, when the first is to end soon.
    first, second, third = (gateway.send(request(n, n)) for n in (1, 2, 3))
    instance, running = await slow.batch()
    _, waiting = await slow.batch()
    assert (running.id, waiting.id) == (2, 3)
    withdraw = await asyncio.wait_for(slow.withdrawals.get(), LIMIT_S)
    assert (withdraw.instance, withdraw.batch) == (instance.load.instance, 3)
    free = await mesh.executor("second")
    assert numbers_of(await asyncio.wait_for(third, LIMIT_S)) == [6, 6]
    # It could still have begun there.
    assert not second.done()
    # Of no instance of its own: ignored.
    slow.send(withdrawn=pb.Withdrawn(instance=99, batch=3))
    free.send(withdrawn=pb.Withdrawn(instance=instance.load.instance, batch=3))
    slow.send(withdrawn=pb.Withdrawn(instance=instance.load.instance, batch=3))
    assert numbers_of(await asyncio.wait_for(second, LIMIT_S)) == [4, 4]
    assert not first.done()
    instance.response(running)
    assert numbers_of(await asyncio.wait_for(first, LIMIT_S)) == [2, 2]
    assert [batch[0][0] for batch in free.seen] == [3, 2]
