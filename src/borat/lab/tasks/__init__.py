"""Other kinds of training: tasks that bring their own model, loss and score."""

from borat.lab.tasks.names import TASKS, find_task, locate
from borat.lab.tasks.run import TaskResult, run
from borat.lab.tasks.task import DataTask, SampledTask, TrainingTask

__all__ = ["TASKS", "DataTask", "SampledTask", "TaskResult", "TrainingTask", "find_task", "locate", "run"]
